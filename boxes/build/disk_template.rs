//! Templates of empty writable disks: ext4 file systems of some sizes, reduced to the blocks that are not zero.
//!
//! Making a file system takes `mkfs.ext4` tens of milliseconds and a program that hosts need not have; writing these
//! few blocks into a sparse file takes neither. A disk between two sizes starts from the smaller one and is grown in
//! the guest.

use std::error::Error;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::Command;

/// (size of the disk, size of its journal), both in MiB, by rising size. 4 GiB is the default of boxes. Growing
/// beyond the last takes the guest some milliseconds for each further ten gigabytes.
const SIZES_MIB: [(u64, u32); 6] =
    [(64, 4), (256, 8), (1024, 16), (4096, 32), (16_384, 64), (65_536, 64)];

const BLOCK_BYTES: usize = 4096;

/// `meta_bg` keeps group descriptors with their groups: nothing is reserved for growth, which has no limit then.
const FEATURES: &str = "none,has_journal,ext_attr,dir_index,filetype,extent,64bit,flex_bg,meta_bg,sparse_super,\
                        large_file,huge_file,dir_nlink,extra_isize,metadata_csum";

/// All disks have the same identifiers: they are found by the serial of their device, and equal input gives equal
/// bytes.
const UUID: &str = "6c696c62-6f78-4469-736b-000000000001";
const EXTENDED: &str = "hash_seed=6c696c62-6f78-4469-736b-000000000002,lazy_itable_init=1,lazy_journal_init=1,\
                        nodiscard,root_owner=0:0";
const TIME: &str = "1735689600";

/// All templates in one: for each `size: u64`, `blocks: u32`, then for each block that is not zero `number: u32`,
/// `length: u32` and as many bytes (without the zeros at its end); numbers are little-endian.
pub fn pack(out: &Path) -> Result<Vec<u8>, Box<dyn Error>> {
    let mkfs = find_mkfs()?;
    let mut packed = Vec::new();
    for (size_mib, journal_mib) in SIZES_MIB {
        let image = out.join("template.ext4");
        make(&mkfs, &image, size_mib, journal_mib)?;
        pack_one(&image, size_mib << 20, &mut packed)?;
        fs::remove_file(&image)?;
    }
    Ok(packed)
}

/// Distributions keep it where only root's `PATH` leads.
fn find_mkfs() -> Result<PathBuf, Box<dyn Error>> {
    println!("cargo::rerun-if-env-changed=PATH");
    let path = std::env::var_os("PATH").unwrap_or_default();
    let directories = std::env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into()]);
    let found =
        directories.map(|directory| directory.join("mkfs.ext4")).find(|program| program.is_file());
    found.ok_or_else(|| "mkfs.ext4 not found: install e2fsprogs".into())
}

fn make(mkfs: &Path, image: &Path, size_mib: u64, journal_mib: u32) -> Result<(), Box<dyn Error>> {
    File::create(image)?.set_len(size_mib << 20)?;
    let output = Command::new(mkfs)
        // The distribution's defaults must not decide.
        .env("MKE2FS_CONFIG", "/dev/null")
        .env("E2FSPROGS_FAKE_TIME", TIME)
        .env("SOURCE_DATE_EPOCH", TIME)
        .args(["-q", "-F", "-b", "4096", "-I", "256", "-i", "16384", "-m", "0", "-L", "lilbox"])
        .args(["-J", &format!("size={journal_mib}"), "-U", UUID, "-O", FEATURES, "-E", EXTENDED])
        .arg(image)
        .output()?;
    if output.status.success() {
        return Ok(());
    }
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    Err(format!("{} failed for {size_mib} MiB: {message}", mkfs.display()).into())
}

fn pack_one(image: &Path, size_bytes: u64, packed: &mut Vec<u8>) -> Result<(), Box<dyn Error>> {
    let blocks = blocks_with_data(&mut File::open(image)?)?;
    packed.extend_from_slice(&size_bytes.to_le_bytes());
    packed.extend_from_slice(&u32::try_from(blocks.len())?.to_le_bytes());
    for (number, bytes) in blocks {
        packed.extend_from_slice(&number.to_le_bytes());
        packed.extend_from_slice(&u32::try_from(bytes.len())?.to_le_bytes());
        packed.extend_from_slice(&bytes);
    }
    Ok(())
}

/// Reads the file's data only, not its holes: the largest template has 64 GiB.
fn blocks_with_data(image: &mut File) -> io::Result<Vec<(u32, Vec<u8>)>> {
    let mut blocks = Vec::new();
    let mut position = 0;
    while let Some((start, end)) = next_data(image, position)? {
        let first = start / BLOCK_BYTES as u64;
        rustix::fs::seek(&*image, rustix::fs::SeekFrom::Start(first * BLOCK_BYTES as u64))?;
        for number in first..end.div_ceil(BLOCK_BYTES as u64) {
            let mut block = [0; BLOCK_BYTES];
            image.read_exact(&mut block)?;
            let length = block.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
            if length > 0 {
                blocks.push((
                    u32::try_from(number).map_err(io::Error::other)?,
                    block[..length].to_vec(),
                ));
            }
        }
        position = end;
    }
    Ok(blocks)
}

fn next_data(image: &File, position: u64) -> io::Result<Option<(u64, u64)>> {
    use rustix::fs::SeekFrom;
    let start = match rustix::fs::seek(image, SeekFrom::Data(position)) {
        Err(rustix::io::Errno::NXIO) => return Ok(None),
        result => result?,
    };
    Ok(Some((start, rustix::fs::seek(image, SeekFrom::Hole(start))?)))
}
