//! Archives that must not become images: each ends in its own error.

use super::super::Limits;
use super::maker::{Tar, dir, file, hardlink, item, records, symlink};
use super::{BuildOptions, ErofsError, build, build_with};

/// The variant's name of the error that an archive ends in.
fn refusal(tar: &[u8]) -> String {
    match build(tar) {
        Ok(_) => "no error".into(),
        Err(error) => variant(&error),
    }
}

fn variant(error: &ErofsError) -> String {
    let debug = format!("{error:?}");
    assert!(!error.to_string().is_empty());
    debug.split([' ', '{', '(']).next().unwrap().into()
}

#[test]
fn names_links_and_owners() {
    let long = "n".repeat(256);
    let deep = "d/".repeat(2100);
    let table = [
        ("climbing path", vec![file("a/../b", "")], "ParentComponent"),
        ("climbing root", vec![file("../etc/passwd", "")], "ParentComponent"),
        ("climbing hard link", vec![file("a", ""), hardlink("b", "x/../a")], "ParentComponent"),
        ("NUL in a name", vec![file("a", "").record("path", "a\0b")], "NulInName"),
        ("NUL in a link", vec![symlink("a", "x").record("linkpath", "x\0y")], "NulInName"),
        ("long name", vec![file(&long, "")], "NameTooLong"),
        ("long parent", vec![file(format!("{long}/a"), "")], "NameTooLong"),
        ("long path", vec![file(&deep, "")], "PathTooLong"),
        ("empty link", vec![symlink("a", "")], "EmptyLinkTarget"),
        ("file as parent", vec![file("a", ""), file("a/b", "")], "NotADirectory"),
        ("fifo as parent", vec![item(b'6', "a"), dir("a/b/c")], "NotADirectory"),
        ("loop of one", vec![symlink("a", "a"), file("a/b", "")], "SymlinkLoop"),
        (
            "loop of two",
            vec![symlink("a", "/b"), symlink("b", "a"), file("a/c", "")],
            "SymlinkLoop",
        ),
        ("link to a long name", vec![symlink("a", &long), file("a/b", "")], "NameTooLong"),
        ("root as file", vec![file("./", "").record("path", ".")], "RootNotDirectory"),
        ("root as link", vec![symlink("/", "a")], "RootNotDirectory"),
        ("hard link to nothing", vec![hardlink("a", "b")], "MissingLinkTarget"),
        ("hard link ahead", vec![hardlink("a", "b"), file("b", "")], "MissingLinkTarget"),
        ("hard link to itself", vec![hardlink("a", "a")], "MissingLinkTarget"),
        (
            "hard link through a file",
            vec![file("f", ""), hardlink("a", "f/b")],
            "MissingLinkTarget",
        ),
        ("hard link to a directory", vec![dir("d"), hardlink("d/e", "d")], "LinkToDirectory"),
        ("hard link to the root", vec![hardlink("a", "/")], "LinkToDirectory"),
        ("huge user", vec![file("a", "").record("uid", "4294967296")], "OwnerOutOfRange"),
        ("no user", vec![file("a", "").record("uid", "4294967295")], "OwnerOutOfRange"),
        (
            "huge group",
            vec![file("a", "").record("gid", "18446744073709551615")],
            "OwnerOutOfRange",
        ),
        ("negative user", vec![file("a", "").record("uid", "-1")], "BadField"),
        ("bad time", vec![file("a", "").record("mtime", "yesterday")], "BadField"),
        ("bad size", vec![file("a", "").record("size", "1e3")], "BadField"),
        ("bad xattr", vec![file("a", "").xattr("user.", "")], "BadXattrName"),
        ("nameless xattr", vec![file("a", "").xattr("", "")], "BadXattrName"),
        ("large xattr", vec![file("a", "").xattr("user.a", vec![0; 65536])], "XattrTooLarge"),
        ("unknown type", vec![item(b'D', "a")], "UnsupportedEntry"),
        ("contiguous volume", vec![item(b'M', "a")], "UnsupportedEntry"),
    ];
    for (what, items, expected) in table {
        assert_eq!(refusal(&Tar::of(&items)), expected, "{what}");
    }
}

#[test]
fn device_numbers_out_of_range() {
    let mut device = item(b'3', "a");
    device.device = (4096, 0);
    assert_eq!(refusal(&Tar::of(&[device.clone()])), "DeviceOutOfRange");
    device.device = (0, 1 << 20);
    assert_eq!(refusal(&Tar::of(&[device])), "DeviceOutOfRange");
}

#[test]
fn broken_streams() {
    let good = Tar::of(&[file("a", vec![7; 5000])]);
    for length in 1..good.len() - 1024 {
        if length % 512 == 0 && length != 512 && length < 512 + 5120 || length % 97 == 0 {
            assert_eq!(refusal(&good[..length]), "Truncated", "{length}");
        }
    }
    assert_eq!(refusal(b""), "Truncated");
    let mut bad = good;
    bad[0] ^= 1;
    assert_eq!(refusal(&bad), "BadChecksum");
    assert_eq!(refusal(&[b'x'; 512]), "BadChecksum");
    assert_eq!(
        refusal(&Tar::default().extension(b'x', b"junk").add(&file("a", "")).end()),
        "BadPaxRecord"
    );
    assert_eq!(refusal(&Tar::default().extension(b'x', &records(&[])).end()), "DanglingExtension");
    assert_eq!(refusal(&Tar::default().extension(b'L', b"name\0").0), "DanglingExtension");
    for kind in [b'x', b'L', b'K'] {
        let twice =
            Tar::default().extension(kind, b"").extension(kind, b"").add(&file("a", "")).end();
        assert_eq!(refusal(&twice), "DanglingExtension");
        let mut huge = item(kind, "a").header();
        huge.set_size(1 << 40);
        huge.set_cksum();
        assert_eq!(refusal(&Tar::default().header(&huge).end()), "ExtensionTooLarge");
    }
    let mut huge = item(b'0', "a").header();
    huge.set_size(u64::MAX);
    huge.set_cksum();
    assert_eq!(refusal(&Tar::default().header(&huge).end()), "ImageTooLarge");
}

#[test]
fn a_failing_reader_is_an_error_of_reading() {
    struct Failing;
    impl std::io::Read for Failing {
        fn read(&mut self, _: &mut [u8]) -> std::io::Result<usize> {
            Err(std::io::Error::other("broken"))
        }
    }
    let out = tempfile::tempfile().unwrap();
    let error = super::build_from_tar(Failing, &out, &BuildOptions::default()).unwrap_err();
    assert!(matches!(error, ErofsError::ReadArchive { .. }));
}

#[test]
fn limits() {
    let limited =
        |limits: Limits, tar: &[u8]| match build_with(tar, &BuildOptions { limits, uuid: None }) {
            Ok(_) => "no error".into(),
            Err(error) => variant(&error),
        };
    let defaults = Limits::default();
    let implied = Tar::of(&[file("a/b/c/d", "")]);
    assert_eq!(limited(Limits { entries: 4, ..defaults }, &implied), "no error");
    assert_eq!(limited(Limits { entries: 3, ..defaults }, &implied), "TooManyEntries");
    let same = Tar::of(&vec![file("a", ""); 100]);
    assert_eq!(limited(Limits { entries: 50, ..defaults }, &same), "TooManyEntries");
    let links =
        Tar::of(&(0..100).map(|i| symlink(format!("{i}"), "t".repeat(4000))).collect::<Vec<_>>());
    assert_eq!(limited(Limits { metadata_bytes: 100_000, ..defaults }, &links), "TooMuchMetadata");
    let directories = Tar::of(&vec![dir("a").xattr("user.a", vec![0; 1000]); 100]);
    assert_eq!(
        limited(Limits { metadata_bytes: 50_000, ..defaults }, &directories),
        "TooMuchMetadata"
    );
    let hard: Vec<_> = std::iter::once(file("a", ""))
        .chain((0..100).map(|i| hardlink(format!("{i:0>200}"), "a")))
        .collect();
    assert_eq!(
        limited(Limits { metadata_bytes: 10_000, ..defaults }, &Tar::of(&hard)),
        "TooMuchMetadata"
    );
    let large = Tar::of(&[file("a", vec![1; 100_000])]);
    assert_eq!(limited(Limits { image_bytes: 50_000, ..defaults }, &large), "ImageTooLarge");
    assert_eq!(limited(Limits { image_bytes: 200_000, ..defaults }, &large), "no error");
    assert_eq!(limited(Limits { image_bytes: 4096, ..defaults }, &Tar::of(&[])), "ImageTooLarge");
}

#[test]
fn links_upon_links_end_after_a_bounded_walk() {
    // Each link's target names the next one twice and climbs back: a walk without a bound doubles at every link.
    let mut items = vec![dir("0")];
    for i in 1..60 {
        let below = i - 1;
        items.push(symlink(format!("{i}"), format!("{below}/../{below}")));
    }
    items.push(file("59/a", ""));
    assert_eq!(refusal(&Tar::of(&items)), "SymlinkLoop");
    let long = [symlink("a", "x/../".repeat(800)), dir("x"), file("a/a/a/a/a/a/b", "")];
    assert_eq!(refusal(&Tar::of(&long)), "SymlinkLoop");
}

#[test]
fn sparse_maps() {
    let pax = |records: &[(&str, &str)], content: &[u8]| {
        let start = file("a", content);
        let item = records.iter().fold(start, |item, (key, value)| item.record(key, value));
        refusal(&Tar::of(&[item]))
    };
    let map = |size: &str, map: &str, content: &[u8]| {
        pax(&[("GNU.sparse.size", size), ("GNU.sparse.map", map)], content)
    };
    assert_eq!(map("10", "0,2,8,2", b"abcd"), "no error");
    for (what, size, list) in [
        ("beyond the end", "9", "0,2,8,2"),
        ("overlap", "10", "0,3,2,1"),
        ("out of order", "10", "8,2,0,2"),
        ("less than the content", "10", "0,2"),
        ("more than the content", "10", "0,2,4,4"),
        ("odd", "10", "0,2,8"),
        ("not numbers", "10", "0,2,8,x"),
        ("overflow", "18446744073709551615", "18446744073709551615,4"),
    ] {
        assert_eq!(map(size, list, b"abcd"), "BadSparseMap", "{what}");
    }
    let zeroes = "0,0,".repeat((1 << 18) + 1);
    assert_eq!(map("10", zeroes.trim_end_matches(','), b""), "ExtensionTooLarge");
    let version = |major, minor, content: &[u8]| {
        pax(
            &[
                ("GNU.sparse.major", major),
                ("GNU.sparse.minor", minor),
                ("GNU.sparse.realsize", "10"),
            ],
            content,
        )
    };
    assert_eq!(version("2", "0", b""), "BadSparseMap");
    assert_eq!(version("1", "1", b""), "BadSparseMap");
    assert_eq!(version("1", "0", b""), "Truncated");
    assert_eq!(version("1", "0", &[b'1'; 4096]), "BadSparseMap");
    assert_eq!(version("1", "0", &[&b"99999999\n"[..], &[0; 600]].concat()), "BadSparseMap");
    // A map that says too little about a huge file is only a hole; but the hole counts against the image.
    assert_eq!(map("99999999999999", "", b""), "ImageTooLarge");
    let gnu_without_header = Tar::of(&[item(b'S', "a")]);
    assert_eq!(refusal(&gnu_without_header), "BadSparseMap");
}
