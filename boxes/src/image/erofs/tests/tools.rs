//! The tools of erofs-utils as a third opinion. Without them these tests say so and pass.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use super::build;
use super::maker::{Item, Tar, dir, file, hardlink, item, symlink};

/// Runs a tool on an image; `None` if it is not installed.
///
/// The image is a nameless file, so the tool gets it as its standard input and opens it by that name.
fn run(tool: &str, arguments: &[&str], image: &File) -> Option<Output> {
    let stdin = image.as_fd().try_clone_to_owned().unwrap();
    let output = Command::new(tool)
        .args(arguments)
        .arg("/proc/self/fd/0")
        .stdin(Stdio::from(stdin))
        .output();
    match output {
        Ok(output) => Some(output),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            println!("skipped: {tool} is not installed");
            None
        }
        Err(error) => panic!("{tool}: {error}"),
    }
}

/// Wants `fsck.erofs` to find no fault.
pub fn fsck(image: &File) {
    if let Some(output) = run("fsck.erofs", &["-d3"], image) {
        assert!(output.status.success(), "{output:?}");
        assert!(!String::from_utf8_lossy(&output.stdout).contains("<E>"), "{output:?}");
    }
}

fn sample() -> Vec<Item> {
    let mut items = vec![
        dir("etc").mode(0o750),
        file("etc/passwd", "root"),
        symlink("link", "etc/passwd"),
        symlink("long", "t".repeat(4000)),
        hardlink("other", "etc/passwd"),
        file("tail", vec![b'x'; 5000]),
        file("whole", vec![b'y'; 8192]),
        file("empty", ""),
        file("attributes", vec![b'z'; 4000])
            .xattr("user.a", "value")
            .xattr("user.b", vec![1; 9000]),
        file("attributes2", "z").xattr("user.a", "value"),
        item(b'6', "pipe"),
        file(b"\xffodd", "odd"),
    ];
    items.extend((0..900).map(|i| file(format!("many/{i:0>50}"), format!("{i}"))));
    items
}

#[test]
fn checker_finds_no_fault() {
    let (image, _) = build(&Tar::of(&sample())).unwrap();
    fsck(&image);
    let (empty, _) = build(&Tar::of(&[])).unwrap();
    fsck(&empty);
}

#[test]
fn checker_extracts_what_went_in() {
    let (image, _) = build(&Tar::of(&sample())).unwrap();
    let place = tempfile::tempdir().unwrap();
    let target = place.path().join("out");
    let option = format!("--extract={}", target.display());
    let Some(output) = run("fsck.erofs", &[&option, "--no-preserve-owner"], &image) else { return };
    assert!(output.status.success(), "{output:?}");
    for item in sample() {
        let path = target.join(Path::new(OsStr::from_bytes(&item.path)));
        match item.kind {
            b'0' => assert_eq!(fs::read(&path).unwrap(), item.content, "{}", path.display()),
            b'1' => assert_eq!(fs::read(&path).unwrap(), b"root"),
            b'2' => assert_eq!(
                fs::read_link(&path).unwrap(),
                PathBuf::from(OsStr::from_bytes(&item.link))
            ),
            b'5' => assert!(path.is_dir()),
            _ => assert_eq!(fs::symlink_metadata(&path).unwrap().mode() & 0o170_000, 0o010_000),
        }
    }
}

#[test]
fn dumper_reads_the_superblock_and_an_inode() {
    let mut su = file("su", "1234").mode(0o4755);
    (su.uid, su.gid) = (12, 70_000);
    let (image, summary) = build(&Tar::of(&[su, hardlink("so", "su")])).unwrap();
    let Some(output) = run("dump.erofs", &["-s"], &image) else { return };
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success());
    let field = |name: &str| {
        text.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim().to_owned()
    };
    assert_eq!(field("Filesystem inode count:"), summary.inodes.to_string());
    assert_eq!(field("Filesystem blocks:"), (summary.image_bytes / 4096).to_string());
    assert_eq!(field("Filesystem features:"), "sb_csum mtime");
    // The tool shows the nine lower bits only.
    let output = run("dump.erofs", &["--path=/su"], &image).unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    for wanted in ["Size: 4 ", "Links: 2", "Uid: 12   Gid: 70000", "0755/rwxr-xr-x"] {
        assert!(text.contains(wanted), "{wanted:?} in {text}");
    }
}
