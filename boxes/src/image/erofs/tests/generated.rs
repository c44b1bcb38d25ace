//! Random trees: whatever goes into the archive comes out of the image. And random damage: never a panic.

use std::collections::BTreeMap;

use super::super::build_from_tar;
use super::maker::{Item, Tar, dir, file, hardlink, item, symlink};
use super::tools::fsck;
use super::{BuildOptions, build, reader, sha256};

/// A small generator of numbers (xorshift), so that a failure can be repeated by its seed.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % sides as u64).unwrap()
    }

    fn bytes(&mut self, length: usize) -> Vec<u8> {
        (0..length).map(|_| u8::try_from(self.roll(256)).unwrap()).collect()
    }

    fn name(&mut self) -> Vec<u8> {
        let length = [1, 2, 8, 30, 255][self.roll(5)];
        let mut name: Vec<u8> =
            (0..length).map(|_| [b'a', b'b', b'Z', b'.', b'-', 0xff, b' '][self.roll(7)]).collect();
        name[0] = b'a' + u8::try_from(self.roll(26)).unwrap();
        name
    }

    fn size(&mut self) -> usize {
        let base = [0, 0, 100, 2048, 4096, 8192, 70_000][self.roll(7)];
        base + self.roll(3) * self.roll(1500)
    }
}

fn decorate(mut item: Item, dice: &mut Dice) -> Item {
    item.mode = u32::try_from(dice.roll(0o10000)).unwrap();
    item.uid = dice.roll(70_000) as u64;
    item.gid = dice.roll(70_000) as u64;
    item.mtime = dice.roll(1 << 33) as u64;
    if dice.roll(3) == 0 {
        item =
            item.record("mtime", format!("{}.{:09}", dice.roll(1 << 40), dice.roll(1_000_000_000)));
    }
    for _ in 0..dice.roll(3) * dice.roll(3) {
        let name =
            ["user.a", "user.b", "security.capability", "trusted.c", "system.posix_acl_access"]
                [dice.roll(5)];
        let length = [0, 1, 20, 300, 5000][dice.roll(5)];
        // Few values, so that some are shared.
        let value = vec![u8::try_from(dice.roll(3)).unwrap(); length];
        item = item.xattr(name, value);
    }
    item
}

/// A tree in an order in which parents come first, and links after what they point at.
fn tree(dice: &mut Dice) -> BTreeMap<Vec<u8>, Item> {
    let mut items = BTreeMap::new();
    let mut directories = vec![Vec::new()];
    let mut files: Vec<Vec<u8>> = Vec::new();
    for _ in 0..dice.roll(150) {
        let parent = directories[dice.roll(directories.len())].clone();
        let name = dice.name();
        let path = if parent.is_empty() { name } else { [&parent, &b"/"[..], &name].concat() };
        if items.contains_key(&path) || path.len() > 4000 {
            continue;
        }
        let new = match dice.roll(10) {
            0..=1 => {
                directories.push(path.clone());
                dir(&path)
            }
            2 => symlink(&path, vec![b't'; 1 + dice.roll(3000)]),
            3 => item(b'6', &path),
            4 => Item { device: (7, 200_000), ..item(b'3', &path) },
            5 if !files.is_empty() => {
                let target = files[dice.roll(files.len())].clone();
                items.insert(path.clone(), hardlink(&path, target));
                continue;
            }
            _ => {
                files.push(path.clone());
                let size = dice.size();
                file(&path, dice.bytes(size))
            }
        };
        items.insert(path, decorate(new, dice));
    }
    items
}

fn check(items: &BTreeMap<Vec<u8>, Item>, listing: &reader::Listing) {
    assert_eq!(listing.len(), items.len() + 1);
    for (path, wanted) in items {
        let found = &listing[path];
        if wanted.kind == b'1' {
            assert_eq!(found.nid, listing[&wanted.link].nid);
            continue;
        }
        let bits = match wanted.kind {
            b'0' => 0o100_000,
            b'2' => 0o120_000,
            b'3' => 0o020_000,
            b'5' => 0o040_000,
            _ => 0o010_000,
        };
        assert_eq!(found.mode, bits | wanted.mode);
        assert_eq!((u64::from(found.uid), u64::from(found.gid)), (wanted.uid, wanted.gid));
        let xattrs: BTreeMap<Vec<u8>, Vec<u8>> = wanted
            .pax
            .iter()
            .filter_map(|(key, value)| {
                Some((key.strip_prefix(b"SCHILY.xattr.")?.to_vec(), value.clone()))
            })
            .collect();
        assert_eq!(found.xattrs, xattrs);
        let mtime = wanted.pax.iter().find(|(key, _)| key == b"mtime");
        let mtime = mtime.map_or_else(
            || (wanted.mtime.cast_signed(), 0),
            |(_, text)| {
                let text = String::from_utf8(text.clone()).unwrap();
                let (seconds, nanos) = text.split_once('.').unwrap();
                (seconds.parse().unwrap(), nanos.parse().unwrap())
            },
        );
        assert_eq!(found.mtime, mtime);
        match wanted.kind {
            b'0' => assert_eq!(found.content, sha256(&wanted.content)),
            b'2' => assert_eq!(found.content, wanted.link),
            b'3' => assert_eq!(found.rdev, 0x30d0_0740),
            _ => {}
        }
    }
}

#[test]
fn random_trees_come_back_whole() {
    for seed in 1..=60 {
        let mut dice = Dice(0x9E37_79B9_7F4A_7C15_u64.wrapping_mul(seed));
        let items = tree(&mut dice);
        // Links sort anywhere, but must come after their targets.
        let (links, rest): (Vec<Item>, Vec<Item>) =
            items.values().cloned().partition(|item| item.kind == b'1');
        let mut order = rest;
        for i in (1..order.len()).rev() {
            order.swap(i, dice.roll(i + 1));
        }
        order.extend(links);
        let (image, _) =
            build(&Tar::of(&order)).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        let listing = reader::list(&image);
        check(&items, &listing);
        if seed <= 5 {
            fsck(&image);
        }
    }
}

#[test]
fn damaged_archives_never_panic_and_what_they_build_is_sound() {
    let mut dice = Dice(7);
    let items: Vec<Item> =
        tree(&mut Dice(99)).into_values().filter(|item| item.kind != b'1').collect();
    let good = Tar::of(&items[..items.len().min(25)]);
    let mut built = 0;
    for _ in 0..400 {
        let mut bad = good.clone();
        for _ in 0..=dice.roll(4) {
            let at = dice.roll(bad.len() / 512) * 512;
            match dice.roll(3) {
                // Damage a header and mend its checksum, so that the damage is looked at.
                0 => {
                    bad[at + dice.roll(512)] = u8::try_from(dice.roll(256)).unwrap();
                    let mut header = ::tar::Header::new_old();
                    header.as_mut_bytes().copy_from_slice(&bad[at..at + 512]);
                    header.set_cksum();
                    bad[at..at + 512].copy_from_slice(header.as_bytes());
                }
                1 => bad.copy_within(at..at + 512, dice.roll(good.len() / 512) * 512),
                _ => bad[at + dice.roll(512)] ^= 1 << dice.roll(8),
            }
        }
        if dice.roll(8) == 0 {
            bad.truncate(dice.roll(bad.len()));
        }
        let out = tempfile::tempfile().unwrap();
        if build_from_tar(&bad[..], &out, &BuildOptions::default()).is_ok() {
            reader::list(&out);
            built += 1;
        }
    }
    assert!(built > 0, "some damage must be harmless, or this tests nothing");
}
