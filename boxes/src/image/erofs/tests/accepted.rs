//! Odd but honest archives: each becomes the image one would expect.

use super::super::Limits;
use super::maker::{Item, Tar, dir, file, hardlink, item, records, symlink};
use super::reader::{Found, Listing, list};
use super::{BuildOptions, build, build_with, listing, sha256};

fn at(listing: &Listing, path: impl AsRef<[u8]>) -> &Found {
    let path = path.as_ref();
    listing.get(path).unwrap_or_else(|| panic!("{:?} is not there", String::from_utf8_lossy(path)))
}

fn paths(listing: &Listing) -> Vec<String> {
    listing.keys().map(|path| String::from_utf8_lossy(path).into_owned()).collect()
}

#[test]
fn an_empty_archive_is_an_empty_root() {
    for tar in [&[0; 512][..], &[0; 1024], &[0; 10240]] {
        let listing = listing(tar);
        assert_eq!(paths(&listing), [""]);
        assert_eq!(at(&listing, "").mode, 0o040_755);
    }
}

#[test]
fn every_kind_with_owner_mode_and_time() {
    let mut null = item(b'3', "dev/null");
    null.device = (1, 3);
    let mut disk = item(b'4', "dev/disk");
    disk.device = (259, 0x12345);
    let mut su = file("bin/su", "x").mode(0o104_755);
    (su.uid, su.gid, su.mtime) = (1000, 65_534, 12);
    let tar = Tar::of(&[
        dir("tmp").mode(0o1777),
        su,
        file("bin/wall", "y")
            .mode(0o2755)
            .record("mtime", "1234567890.123456789")
            .record("uid", "4000000000"),
        null.mode(0o666),
        disk,
        item(b'6', "dev/pipe"),
        symlink("bin/sh", "su"),
        file("old", "").record("mtime", "-1.5"),
        item(b'7', "contiguous"),
        item(0, "v7"),
        item(0, "v7dir/"),
    ]);
    let listing = listing(&tar);
    assert_eq!(at(&listing, "tmp").mode, 0o041_777);
    let su = at(&listing, "bin/su");
    assert_eq!((su.mode, su.uid, su.gid, su.mtime), (0o104_755, 1000, 65_534, (12, 0)));
    let wall = at(&listing, "bin/wall");
    assert_eq!(
        (wall.mode, wall.uid, wall.mtime),
        (0o102_755, 4_000_000_000, (1_234_567_890, 123_456_789))
    );
    assert_eq!((at(&listing, "dev/null").mode, at(&listing, "dev/null").rdev), (0o020_666, 0x103));
    assert_eq!(
        (at(&listing, "dev/disk").mode, at(&listing, "dev/disk").rdev),
        (0o060_644, 0x1231_0345)
    );
    assert_eq!(at(&listing, "dev/pipe").mode, 0o010_644);
    assert_eq!(at(&listing, "bin/sh").content, b"su");
    assert_eq!(at(&listing, "old").mtime, (-2, 500_000_000));
    assert_eq!(at(&listing, "contiguous").mode, 0o100_644);
    assert_eq!(at(&listing, "v7").mode, 0o100_644);
    assert_eq!(at(&listing, "v7dir").mode, 0o040_644);
    let implied = at(&listing, "bin");
    assert_eq!((implied.mode, implied.uid, implied.gid, implied.mtime), (0o040_755, 0, 0, (0, 0)));
}

#[test]
fn sizes_around_blocks_and_tails() {
    let sizes = [
        0,
        1,
        2047,
        2048,
        2049,
        4095,
        4096,
        4097,
        6144,
        6145,
        8192,
        100_000,
        1 << 20,
        (1 << 20) + 1,
        3_000_000,
    ];
    let content =
        |size: usize| (0..size).map(|i| (i * 31 + size).to_le_bytes()[0]).collect::<Vec<u8>>();
    let items: Vec<Item> =
        sizes.iter().map(|&size| file(format!("f{size}"), content(size))).collect();
    let tar = Tar::of(&items);
    for inline_bytes in [0, 3000, 1 << 20] {
        let limits = Limits { inline_bytes, ..Limits::default() };
        let (image, summary) = build_with(&tar, &BuildOptions { limits, uuid: None }).unwrap();
        assert_eq!(summary.content_bytes, sizes.iter().sum::<usize>() as u64);
        let listing = list(&image);
        for size in sizes {
            let found = at(&listing, format!("f{size}"));
            assert_eq!(
                (found.size, &found.content),
                (size as u64, &sha256(&content(size))),
                "{size}"
            );
        }
    }
}

#[test]
fn paths_are_normalised() {
    let tar =
        Tar::of(&[dir("./"), file("./a", ""), file("/b", ""), file("c//./d", ""), dir("./e/")]);
    assert_eq!(paths(&listing(&tar)), ["", "a", "b", "c", "c/d", "e"]);
}

#[test]
fn root_entry_gives_the_root_its_attributes() {
    for path in ["./", ".", "/"] {
        let tar = Tar::of(&[file("a", ""), dir(path).mode(0o700).xattr("user.a", "b")]);
        let listing = listing(&tar);
        assert_eq!(at(&listing, "").mode, 0o040_700);
        assert_eq!(at(&listing, "").xattrs.len(), 1);
        assert_eq!(paths(&listing), ["", "a"]);
    }
}

#[test]
fn a_directory_may_come_after_its_children() {
    let listing =
        listing(&Tar::of(&[file("a/b/c", "x"), dir("a").mode(0o700), dir("a/b").mode(0o711)]));
    assert_eq!(at(&listing, "a").mode, 0o040_700);
    assert_eq!(at(&listing, "a/b").mode, 0o040_711);
    assert_eq!(at(&listing, "a/b/c").size, 1);
}

#[test]
fn later_entries_replace_earlier_ones() {
    let listing = listing(&Tar::of(&[
        file("a", "old"),
        file("a", "newer"),
        dir("b"),
        file("b/c", ""),
        file("b", "now a file"),
        file("d", ""),
        dir("d"),
        file("d/e", ""),
        symlink("f", "d"),
        dir("f"),
        dir("g"),
        symlink("g", "d"),
        file("h", "1"),
        hardlink("i", "h"),
        file("h", "22"),
    ]));
    assert_eq!(paths(&listing), ["", "a", "b", "d", "d/e", "f", "g", "h", "i"]);
    assert_eq!(at(&listing, "a").content, sha256(b"newer"));
    assert_eq!(at(&listing, "b").mode, 0o100_644);
    assert_eq!(at(&listing, "d").mode, 0o040_755);
    assert_eq!(at(&listing, "f").mode, 0o040_755, "a directory takes a link's place");
    assert_eq!(at(&listing, "g").content, b"d");
    assert_eq!((at(&listing, "h").content.clone(), at(&listing, "h").links), (sha256(b"22"), 1));
    assert_eq!((at(&listing, "i").content.clone(), at(&listing, "i").links), (sha256(b"1"), 1));
}

#[test]
fn the_end_mark_may_be_missing() {
    let tar = Tar::default().add(&file("a", "x")).add(&dir("b")).0;
    assert_eq!(paths(&listing(&tar)), ["", "a", "b"]);
}

#[test]
fn hard_links_are_one_inode() {
    let listing = listing(&Tar::of(&[
        file("dir/a", "content"),
        hardlink("b", "dir/a"),
        hardlink("c", "/dir/a"),
        hardlink("dir/d", "./b"),
        hardlink("b", "b"),
        symlink("s", "nowhere"),
        hardlink("t", "s"),
        symlink("via", "dir"),
        hardlink("e", "via/a"),
    ]));
    let a = at(&listing, "dir/a");
    assert_eq!(a.links, 5);
    for name in ["b", "c", "dir/d", "e"] {
        assert_eq!(at(&listing, name), a, "{name}");
    }
    assert_eq!((at(&listing, "t").links, &at(&listing, "t").content[..]), (2, &b"nowhere"[..]));
}

#[test]
fn parents_that_are_links_are_followed_inside_the_tree() {
    let listing = listing(&Tar::of(&[
        dir("usr/lib"),
        symlink("lib", "usr/lib"),
        file("lib/a", ""),
        symlink("usr/up", "../../../../etc/./deep"),
        file("usr/up/b", ""),
        symlink("usr/abs", "/opt"),
        file("usr/abs/c", ""),
    ]));
    assert_eq!(at(&listing, "lib").content, b"usr/lib");
    for path in ["usr/lib/a", "etc/deep/b", "opt/c"] {
        assert_eq!(at(&listing, path).mode, 0o100_644);
    }
}

#[test]
fn names_of_any_bytes_and_lengths() {
    let odd = [
        &b"\xff\xfe"[..],
        b"new\nline",
        b"-dash",
        b"!before",
        b"..x",
        b"...",
        b" ",
        "ü".as_bytes(),
        &[b'n'; 255],
    ];
    let deep = vec!["d"; 2000].join("/");
    let mut items: Vec<Item> = odd.iter().map(|name| file(name, name)).collect();
    items.push(file(&deep, "deep"));
    let listing = listing(&Tar::of(&items));
    for name in odd {
        assert_eq!(at(&listing, name).content, sha256(name));
    }
    assert_eq!(at(&listing, deep).content, sha256(b"deep"));
}

#[test]
fn long_symbolic_links() {
    for length in [59, 60, 2047, 2048, 2049, 4000, 4095] {
        let target = "t".repeat(length);
        assert_eq!(
            at(&listing(&Tar::of(&[symlink("l", &target)])), "l").content,
            target.as_bytes()
        );
    }
}

#[test]
fn large_directories() {
    let names: Vec<String> =
        (0..20_000).map(|i| format!("{:x}-{}", i * 7919 % 20_011, "n".repeat(i % 180))).collect();
    let items: Vec<Item> = names.iter().map(|name| item(b'6', format!("big/{name}"))).collect();
    let listing = listing(&Tar::of(&items));
    assert_eq!(listing.len(), names.len() + 2);
    assert!(names.iter().all(|name| listing.contains_key(format!("big/{name}").as_bytes())));
}

#[test]
fn extended_attributes() {
    let capability = [1, 0, 0, 2, 0, 0x20, 0, 0, 0, b'\n', 0, b'=', 0, 0, 0, 0, 0, 0, 0, 0];
    let acl = b"\x02\0\0\0\x01\0\x06\0\xff\xff\xff\xff";
    let many =
        (0..40).fold(file("many", vec![1; 100]), |f, i| f.xattr(&format!("user.{i}"), vec![i; 90]));
    let tar = Tar::of(&[
        file("ping", "x").xattr("security.capability", capability).xattr("user.empty", ""),
        file("ping2", "x").xattr("security.capability", capability),
        dir("d")
            .xattr("system.posix_acl_default", acl)
            .xattr("system.posix_acl_access", acl)
            .xattr("trusted.t", "1"),
        symlink("l", "x").xattr("security.selinux", "label\0"),
        file("large", vec![1; 3000]).xattr("user.large", vec![7; 65_535]),
        many.clone(),
        Item { path: b"many2".to_vec(), ..many },
        file("mac", "")
            .xattr("com.apple.quarantine", "x")
            .xattr("trusted.overlay.opaque", "y")
            .xattr("user.kept", "z"),
    ]);
    let (image, summary) = build(&tar).unwrap();
    assert_eq!(summary.ignored_xattrs, 2);
    let listing = list(&image);
    let value = |path: &str, name: &str| at(&listing, path).xattrs.get(name.as_bytes()).cloned();
    assert_eq!(value("ping", "security.capability"), Some(capability.to_vec()));
    assert_eq!(value("ping", "user.empty"), Some(vec![]));
    assert_eq!(value("ping2", "security.capability"), Some(capability.to_vec()));
    assert_eq!(value("d", "system.posix_acl_default"), Some(acl.to_vec()));
    assert_eq!(value("d", "system.posix_acl_access"), Some(acl.to_vec()));
    assert_eq!(value("d", "trusted.t"), Some(b"1".to_vec()));
    assert_eq!(value("l", "security.selinux"), Some(b"label\0".to_vec()));
    assert_eq!(value("large", "user.large"), Some(vec![7; 65_535]));
    assert_eq!(at(&listing, "large").content, sha256(&[1; 3000]));
    assert_eq!(at(&listing, "many").xattrs.len(), 40);
    assert_eq!(at(&listing, "many").xattrs, at(&listing, "many2").xattrs);
    assert_eq!(at(&listing, "mac").xattrs.len(), 1);
}

#[test]
fn gnu_long_names_and_global_headers() {
    let name = format!("{}/{}", "d".repeat(200), "f".repeat(200));
    let target = "t".repeat(300);
    let tar = Tar::default()
        .extension(
            b'g',
            &records(&[(b"uid".to_vec(), b"77".to_vec()), (b"comment".to_vec(), b"c".to_vec())]),
        )
        .extension(b'L', format!("{name}\0").as_bytes())
        .add(&file("cut", "long"))
        .extension(b'K', format!("{target}\0").as_bytes())
        .extension(b'L', b"link\0")
        .header(&symlink("cut", "cut").header())
        .add(&file("own", "").record("uid", "78"))
        .add(&item(b'V', "label, not a file"))
        .end();
    let listing = listing(&tar);
    assert_eq!(at(&listing, &name).content, sha256(b"long"));
    assert_eq!(at(&listing, &name).uid, 77);
    assert_eq!(at(&listing, "link").content, target.as_bytes());
    assert_eq!(at(&listing, "own").uid, 78);
    assert_eq!(listing.len(), 5);
}

#[test]
fn size_of_entries_without_content_is_ignored() {
    let mut header = dir("d").header();
    header.set_size(123_456);
    header.set_cksum();
    let tar = Tar::default().header(&header).add(&file("a", "x")).end();
    assert_eq!(paths(&listing(&tar)), ["", "a", "d"]);
}

#[test]
fn blank_number_fields_are_zero() {
    let mut header = file("a", "").header();
    header.as_old_mut().uid = *b"        ";
    header.as_old_mut().mtime = [0; 12];
    header.set_cksum();
    let listing = listing(&Tar::default().header(&header).end());
    assert_eq!((at(&listing, "a").uid, at(&listing, "a").mtime), (0, (0, 0)));
}

#[test]
fn sparse_files_in_all_four_forms() {
    let mut whole = vec![0; 20_000];
    whole[5000..5600].fill(b'a');
    whole[9000..9512].fill(b'b');
    let parts = [&whole[5000..5600], &whole[9000..9512]].concat();
    let v00 = file("GNUSparseFile/a", &parts)
        .record("GNU.sparse.size", "20000")
        .record("GNU.sparse.numblocks", "2")
        .record("GNU.sparse.offset", "5000")
        .record("GNU.sparse.numbytes", "600")
        .record("GNU.sparse.offset", "9000")
        .record("GNU.sparse.numbytes", "512");
    let v01 = file("x", &parts)
        .record("GNU.sparse.size", "20000")
        .record("GNU.sparse.numblocks", "2")
        .record("GNU.sparse.name", "v01")
        .record("GNU.sparse.map", "5000,600,9000,512");
    let mut map = b"2\n5000\n600\n9000\n512\n".to_vec();
    map.resize(512, 0);
    let v10 = file("x", [&map[..], &parts].concat())
        .record("GNU.sparse.major", "1")
        .record("GNU.sparse.minor", "0")
        .record("GNU.sparse.name", "v10")
        .record("GNU.sparse.realsize", "20000");
    let tar = Tar::default()
        .add(&v00)
        .add(&v01)
        .add(&v10)
        .header(&gnu_sparse("old", 1112, 20_000, false))
        .content(&parts);
    let listing = listing(&tar.end());
    for name in ["GNUSparseFile/a", "v01", "v10", "old"] {
        assert_eq!(
            (at(&listing, name).size, &at(&listing, name).content),
            (20_000, &sha256(&whole)),
            "{name}"
        );
    }
}

/// A header of the old GNU form with the map of the test above.
fn gnu_sparse(name: &str, stored: u64, size: u64, extended: bool) -> ::tar::Header {
    let mut header = ::tar::Header::new_gnu();
    header.set_path(name).unwrap();
    header.set_entry_type(::tar::EntryType::GNUSparse);
    header.set_mode(0o644);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header.set_size(stored);
    let gnu = header.as_gnu_mut().unwrap();
    gnu.realsize[..11].copy_from_slice(format!("{size:011o}").as_bytes());
    gnu.isextended = [u8::from(extended)];
    if !extended {
        for (field, (offset, length)) in gnu.sparse.iter_mut().zip([(5000, 600), (9000, 512)]) {
            field.offset[..11].copy_from_slice(format!("{offset:011o}").as_bytes());
            field.numbytes[..11].copy_from_slice(format!("{length:011o}").as_bytes());
        }
    }
    header.set_cksum();
    header
}

#[test]
fn gnu_sparse_map_in_further_blocks() {
    let mut block = ::tar::GnuExtSparseHeader::new();
    for (i, field) in block.sparse.iter_mut().enumerate() {
        field.offset[..11].copy_from_slice(format!("{:011o}", i * 10_000).as_bytes());
        field.numbytes[..11].copy_from_slice(format!("{:011o}", 1).as_bytes());
    }
    let size = 1 << 20;
    let mut tar = Tar::default().header(&gnu_sparse("old", 21, size, true));
    tar.0.extend(block.as_bytes());
    let listing = listing(&tar.content(&[b'x'; 21]).end());
    let mut whole = vec![0; usize::try_from(size).unwrap()];
    (0..21).for_each(|i| whole[i * 10_000] = b'x');
    assert_eq!(at(&listing, "old").content, sha256(&whole));
}

#[test]
fn holes_beyond_four_gibibytes_take_no_space() {
    use std::os::unix::fs::MetadataExt;
    let size = 5_u64 << 30;
    let last = size - 3;
    let sparse = file("big", "end")
        .record("GNU.sparse.size", size.to_string())
        .record("GNU.sparse.map", format!("{last},3"));
    let (image, _) = build(&Tar::of(&[sparse, file("after", "x")])).unwrap();
    let metadata = image.metadata().unwrap();
    assert!(metadata.len() > size);
    assert!(metadata.blocks() * 512 < 1 << 20, "{} bytes on disk", metadata.blocks() * 512);
    let listing = list(&image);
    assert_eq!((at(&listing, "big").size, at(&listing, "after").size), (size, 1));
    // The listing hashes the end of so large a file.
    let mut end = vec![0; 1 << 20];
    end[(1 << 20) - 3..].copy_from_slice(b"end");
    assert_eq!(at(&listing, "big").content, sha256(&end));
}

#[test]
fn same_archive_same_bytes_and_other_content_other_uuid() {
    let bytes = |tar: &[u8]| {
        let (image, summary) = build(tar).unwrap();
        let mut bytes = vec![0; usize::try_from(summary.image_bytes).unwrap()];
        std::os::unix::fs::FileExt::read_exact_at(&image, &mut bytes, 0).unwrap();
        (bytes, summary)
    };
    let tar = |content: &[u8]| {
        Tar::of(&[dir("a").xattr("user.a", "1"), file("a/b", content), file("c", vec![3; 9000])])
    };
    assert_eq!(bytes(&tar(b"one")), bytes(&tar(b"one")));
    let (one, two) = (bytes(&tar(b"one")), bytes(&tar(b"two")));
    assert_ne!(one.1.content_digest, two.1.content_digest);
    let uuid = |image: &[u8]| image[1024 + 48..1024 + 64].to_vec();
    assert_ne!(uuid(&one.0), uuid(&two.0));
    let fixed = BuildOptions { uuid: Some([9; 16]), ..BuildOptions::default() };
    let (image, _) = build_with(&tar(b"one"), &fixed).unwrap();
    let mut block = [0; 4096];
    std::os::unix::fs::FileExt::read_exact_at(&image, &mut block, 0).unwrap();
    assert_eq!(uuid(&block), [9; 16]);
}

#[test]
fn an_output_that_held_something_is_emptied() {
    use std::io::Write;
    let mut out = tempfile::tempfile().unwrap();
    out.write_all(&vec![0xff; 1 << 20]).unwrap();
    let tar = Tar::of(&[file("a", vec![1; 5000])]);
    super::build_from_tar(&tar[..], &out, &BuildOptions::default()).unwrap();
    assert_eq!(at(&list(&out), "a").content, sha256(&[1; 5000]));
}

#[test]
fn archives_are_applied_in_order() {
    let out = tempfile::tempfile().unwrap();
    let mut builder = super::super::Builder::new(&out, &BuildOptions::default()).unwrap();
    builder.add_tar(&Tar::of(&[file("a", "1"), file("b", "1"), hardlink("c", "a")])[..]).unwrap();
    builder.add_tar(&Tar::of(&[file("b", "2"), hardlink("d", "a"), dir("e")])[..]).unwrap();
    let summary = builder.finish().unwrap();
    assert_eq!((summary.entries, summary.inodes), (6, 4));
    let listing = list(&out);
    assert_eq!(paths(&listing), ["", "a", "b", "c", "d", "e"]);
    assert_eq!((at(&listing, "a").links, at(&listing, "b").content.clone()), (3, sha256(b"2")));
}
