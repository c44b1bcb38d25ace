//! Empty writable disks: ext4 file systems that were made when this crate was built.
//!
//! Guests find one of the templates' sizes and grow the file system to the disk's size when they first mount it.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

const TEMPLATES: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/empty_disks"));

const BLOCK_BYTES: u64 = 4096;

/// Least size of a disk.
pub const MIN_DISK_BYTES: u64 = 64 << 20;

/// Makes `file`, which must be empty, a disk of `size_bytes` with an empty ext4 file system. The file is sparse.
///
/// # Errors
/// [`io::ErrorKind::InvalidInput`] if the size is below [`MIN_DISK_BYTES`] or not a multiple of 4096, or whatever
/// writing fails with. The file is of no use then.
pub fn write_empty_disk(file: &File, size_bytes: u64) -> io::Result<()> {
    let fitting = templates().take_while(|template| template.size_bytes <= size_bytes).last();
    let Some(template) = fitting.filter(|_| size_bytes.is_multiple_of(BLOCK_BYTES)) else {
        let message = format!(
            "a disk has at least {MIN_DISK_BYTES} bytes and whole blocks, not {size_bytes} bytes"
        );
        return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
    };
    file.set_len(size_bytes)?;
    for (offset, bytes) in template.blocks() {
        file.write_all_at(bytes, offset)?;
    }
    Ok(())
}

/// One template; see the build script for the format.
#[derive(Debug, Clone, Copy)]
struct Template {
    size_bytes: u64,
    block_count: u32,
    blocks: &'static [u8],
}

impl Template {
    fn blocks(self) -> impl Iterator<Item = (u64, &'static [u8])> {
        let mut rest = self.blocks;
        (0..self.block_count).map_while(move |_| {
            let number = u64::from(u32::from_le_bytes(take(&mut rest)?));
            let length = usize::try_from(u32::from_le_bytes(take(&mut rest)?)).ok()?;
            Some((number * BLOCK_BYTES, rest.split_off(..length)?))
        })
    }
}

/// All templates, by rising size.
fn templates() -> impl Iterator<Item = Template> {
    let mut rest = TEMPLATES;
    std::iter::from_fn(move || {
        let size_bytes = u64::from_le_bytes(take(&mut rest)?);
        let block_count = u32::from_le_bytes(take(&mut rest)?);
        let template = Template { size_bytes, block_count, blocks: rest };
        let headers = 8 * usize::try_from(block_count).ok()?;
        let data: usize = template.blocks().map(|(_, bytes)| bytes.len()).sum();
        rest = rest.get(headers + data..)?;
        Some(template)
    })
}

fn take<const N: usize>(rest: &mut &'static [u8]) -> Option<[u8; N]> {
    let (first, others) = rest.split_first_chunk()?;
    *rest = others;
    Some(*first)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;
    use std::process::Command;

    fn check(size_bytes: u64) -> (String, u64) {
        let disk = tempfile::NamedTempFile::new().unwrap();
        write_empty_disk(disk.as_file(), size_bytes).unwrap();
        let metadata = disk.as_file().metadata().unwrap();
        assert_eq!(metadata.len(), size_bytes);
        let path = std::env::join_paths(["/usr/sbin", "/sbin", "/usr/bin", "/bin"]).unwrap();
        let output =
            Command::new("e2fsck").env("PATH", path).arg("-fn").arg(disk.path()).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
        (text, metadata.blocks() * 512)
    }

    #[test]
    fn every_template_is_a_clean_file_system_of_its_size() {
        let sizes: Vec<u64> = templates().map(|template| template.size_bytes >> 20).collect();
        assert_eq!(sizes, [64, 256, 1024, 4096, 16_384, 65_536]);
        for size in sizes {
            let (report, used_bytes) = check(size << 20);
            assert!(
                report.contains(&format!("/{} blocks", (size << 20) / BLOCK_BYTES)),
                "{report}"
            );
            assert!(used_bytes < 1 << 20, "{used_bytes} bytes of {size} MiB are written");
        }
    }

    #[test]
    fn sizes_between_take_the_next_smaller_template() {
        let (report, _) = check(10 << 30);
        assert!(report.contains("/1048576 blocks"), "{report}");
        let (report, _) = check(1 << 40);
        assert!(report.contains("/16777216 blocks"), "{report}");
    }

    #[test]
    fn sizes_that_make_no_disk_are_refused() {
        for size in [0, 4096, MIN_DISK_BYTES - 4096, MIN_DISK_BYTES + 1] {
            let file = tempfile::tempfile().unwrap();
            let error = write_empty_disk(&file, size).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
            assert_eq!(file.metadata().unwrap().len(), 0);
        }
    }
}
