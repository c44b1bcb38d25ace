//! Images made here: an archive or a directory becomes a file in the images directory, named after its content.

use super::directory::{self, Owners};
use super::erofs::{self, BuildOptions, ErofsError};
use super::{ImageConfig, file};
use crate::home::Home;
use crate::lock::Gate;
use crate::paths::Dirs;
use crate::progress::{Counted, Tell};
use crate::store::ImageRecord;
use crate::{Error, Result, hex};
use rustix::fs::{FlockOperation, flock};
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

/// What an image is made of.
pub enum Source<'a> {
    /// A tar archive.
    Tar(&'a mut dyn Read),
    /// A directory.
    Directory(&'a Path),
}

/// A file in the making. Its name tells [`clean`] that it is not an image, its lock that it is being written.
struct Unfinished {
    path: PathBuf,
    file: File,
}

impl Unfinished {
    fn new(images: &Path) -> Result<Self> {
        let path = images.join(format!("{UNFINISHED}{}", crate::random::hex::<8>()?));
        let make = format!("make {}", path.display());
        let file = File::options()
            .read(true)
            .write(true)
            .create_new(true)
            .open(&path)
            .map_err(Error::io(make))?;
        flock(&file, FlockOperation::NonBlockingLockExclusive)
            .map_err(Error::sys("lock a new image"))?;
        Ok(Self { path, file })
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        // Gone already if it was finished.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Prefix of names of files in the making.
const UNFINISHED: &str = ".new-";

/// Makes an image and records it under `tag`. `source_name` says where it came from: for a path, what was there.
/// `tell` hears how much was read.
///
/// # Errors
/// [`Error::ImageInvalid`] if the archive cannot be made into an image, [`Error::Io`] if something cannot be read or
/// written.
pub fn import(
    home: &Home,
    source: Source<'_>,
    tag: &str,
    source_name: &str,
    config: ImageConfig,
    tell: &mut Tell<'_>,
) -> Result<ImageRecord> {
    let unfinished = {
        // Between a file's making and its lock nobody may take it for what a killed command left.
        let _gate = Gate::exclusive(&home.dirs.gate())?;
        Unfinished::new(&home.dirs.images())?
    };
    let options = BuildOptions::default();
    let refused = |error| match error {
        // That is not the archive's fault.
        ErofsError::WriteImage { operation, source } => {
            Error::io(format!("write the image ({operation})"))(source)
        }
        error => Error::ImageInvalid { reference: tag.into(), cause: chain(&error) },
    };
    let summary = match source {
        Source::Tar(tar) => {
            let mut tar = Counted::new(tar, tell);
            let summary =
                erofs::build_from_tar(&mut tar, &unfinished.file, &options).map_err(refused)?;
            // A writer at the other end of a pipe must not be cut off before its last block.
            std::io::copy(&mut tar, &mut std::io::sink())
                .map_err(Error::io("read the archive to its end"))?;
            summary
        }
        Source::Directory(path) => {
            let (reader, writer) = std::io::pipe().map_err(Error::io("make a pipe"))?;
            std::thread::scope(|scope| {
                let packer =
                    scope.spawn(|| directory::write_tar(path, Owners::of_this_user(), writer));
                let reader = Counted::new(reader, tell);
                let built = erofs::build_from_tar(reader, &unfinished.file, &options);
                // What the packer could not read comes first: the builder only saw its archive end early. Unless
                // the builder gave up, which the packer sees as a broken pipe.
                match (packer.join().expect("packing does not panic"), built) {
                    (Err(Error::Io { source, .. }), Err(error))
                        if source.kind() == std::io::ErrorKind::BrokenPipe =>
                    {
                        Err(refused(error))
                    }
                    (Err(error), _) => Err(error),
                    (Ok(()), built) => built.map_err(refused),
                }
            })?
        }
    };
    let record = ImageRecord {
        tag: tag.into(),
        source: source_name.into(),
        digest: format!("erofs-{}", hex::digits(&summary.content_digest)),
        size_bytes: summary.image_bytes,
        config,
        created_at_ms: crate::clock::unix_millis(),
    };
    let path = image_path(&home.dirs, &record.digest);
    let write = || Error::io(format!("write {}", path.display()));
    unfinished.file.sync_all().map_err(write())?;
    let writing = home.store.writing(true)?;
    // With the gate to oneself nobody removes the file before its row says that it is needed.
    let gate = Gate::exclusive(&home.dirs.gate())?;
    std::fs::rename(&unfinished.path, &path).map_err(write())?;
    home.store.put_image(&record)?;
    writing.commit()?;
    super::sweep(home, &gate)?;
    Ok(record)
}

/// Where the image of that digest lies.
pub(super) fn image_path(dirs: &Dirs, digest: &str) -> PathBuf {
    dirs.images().join(format!("{digest}.img"))
}

/// Removes files that killed commands left in the making. The caller has the gate to itself.
pub(crate) fn clean(images: &Path) -> Result<()> {
    let entries =
        std::fs::read_dir(images).map_err(Error::io(format!("read {}", images.display())))?;
    for entry in entries.flatten() {
        if !entry.file_name().to_string_lossy().starts_with(UNFINISHED) {
            continue;
        }
        // One that cannot be opened was finished, or removed by another command, meanwhile.
        let Ok(file) = File::open(entry.path()) else { continue };
        if flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok() {
            log::info!("removing {}, which a killed command left", entry.path().display());
            let _ = std::fs::remove_file(entry.path());
        }
    }
    Ok(())
}

fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

/// Prefix of the digest of a file that is used where it lies.
pub(super) const FILE_DIGEST: &str = "file-";

/// What a file looked like: changes when it is replaced or written to.
pub(super) fn file_fingerprint(file: &File, path: &Path) -> Result<String> {
    use std::os::unix::fs::MetadataExt;
    let metadata = file.metadata().map_err(Error::io(format!("look at {}", path.display())))?;
    let numbers = (metadata.ino(), metadata.size(), metadata.mtime(), metadata.mtime_nsec());
    Ok(format!("{FILE_DIGEST}{}-{}-{}-{}", numbers.0, numbers.1, numbers.2, numbers.3))
}

/// Makes an image of a path, or finds the one made before if nothing has changed there.
pub(super) fn from_path(home: &Home, path: &Path, tell: &mut Tell<'_>) -> Result<ImageRecord> {
    let tag = path.to_str().ok_or_else(|| Error::not_utf8("image", path))?;
    let open = || File::open(path).map_err(Error::io(format!("open {}", path.display())));
    let is_directory = path.is_dir();
    let fingerprint = if is_directory {
        directory::fingerprint(path)?
    } else {
        file_fingerprint(&open()?, path)?
    };
    if let Some(record) = home.store.image(tag)?
        && record.source == fingerprint
        && image_path(&home.dirs, &record.digest).exists()
    {
        return Ok(record);
    }
    let config = ImageConfig::default();
    if is_directory {
        import(home, Source::Directory(path), tag, &fingerprint, config, tell)
    } else {
        let mut file = open()?;
        if !file::is_tar(&file, path)? {
            let cause =
                "it is neither a directory, a tar archive nor an EROFS or ext4 file system".into();
            return Err(Error::ImageInvalid { reference: tag.into(), cause });
        }
        import(home, Source::Tar(&mut file), tag, &fingerprint, config, tell)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::install::{Install, Told};
    use crate::paths::Environment;

    fn home(root: &Path) -> Home {
        let from = Environment {
            lilbox_home: Some(root.into()),
            temporary: "/tmp".into(),
            ..Environment::default()
        };
        Home::open(
            Dirs::compute(&from).unwrap(),
            Install::locate(Path::new("/nowhere"), Told::default()),
        )
        .unwrap()
    }

    #[test]
    fn a_directory_is_made_into_an_image_once_and_an_old_image_goes() {
        let directory = tempfile::tempdir().unwrap();
        let root = tempfile::tempdir().unwrap();
        let (home, path) = (home(directory.path()), root.path());
        std::fs::write(path.join("file"), "x").unwrap();
        let first = from_path(&home, path, &mut |_| {}).unwrap();
        assert_eq!(from_path(&home, path, &mut |_| {}).unwrap(), first);
        let image = File::open(image_path(&home.dirs, &first.digest)).unwrap();
        assert_eq!(file::detect(&image, path).unwrap(), Some(file::Filesystem::Erofs));
        std::fs::write(path.join("file"), "changed").unwrap();
        let second = from_path(&home, path, &mut |_| {}).unwrap();
        assert_ne!(second.digest, first.digest);
        assert!(!image_path(&home.dirs, &first.digest).exists());
        super::super::remove(&home, path.to_str().unwrap()).unwrap();
        assert_eq!(home.dirs.images().read_dir().unwrap().count(), 0);
        assert!(matches!(super::super::remove(&home, "ghost"), Err(Error::ImageNotFound(_))));
    }

    #[test]
    fn garbage_is_refused_and_leaves_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let home = home(directory.path());
        let images = home.dirs.images();
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), vec![7; 4096]).unwrap();
        assert!(matches!(
            from_path(&home, file.path(), &mut |_| {}),
            Err(Error::ImageInvalid { .. })
        ));
        let garbage = import(
            &home,
            Source::Tar(&mut &[7; 4096][..]),
            "t",
            "-",
            ImageConfig::default(),
            &mut |_| {},
        );
        assert!(matches!(garbage, Err(Error::ImageInvalid { .. })));
        assert_eq!(images.read_dir().unwrap().count(), 0);
        std::fs::write(images.join(".new-dead"), "").unwrap();
        let living = Unfinished::new(&images).unwrap();
        clean(&images).unwrap();
        let left: Vec<_> = images.read_dir().unwrap().map(|entry| entry.unwrap().path()).collect();
        assert_eq!(left, std::slice::from_ref(&living.path));
    }
}
