//! Makes what boxes start from and what is linked into this crate: the initramfs with guest-init, and templates of
//! the empty writable disk.

#![expect(
    clippy::disallowed_methods,
    reason = "Cargo speaks to build scripts through the environment"
)]

#[path = "build/disk_template.rs"]
mod disk_template;
#[path = "build/guest_init.rs"]
mod guest_init;

use proto::cpio::{Archive, Kind};
use sha2::{Digest, Sha256};
use std::env;
use std::error::Error;
use std::fs;
use std::path::PathBuf;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=build");
    let out = PathBuf::from(env::var("OUT_DIR")?);
    let initramfs = initramfs(&guest_init::program(&out)?);
    fs::write(out.join("initramfs.cpio"), &initramfs)?;
    println!(
        "cargo::rustc-env=LILBOX_INITRAMFS_SHA256={}",
        hexadecimal(&Sha256::digest(&initramfs))
    );
    fs::write(out.join("empty_disks"), disk_template::pack(&out)?)?;
    Ok(())
}

/// Uncompressed: loading it is one copy, and unpacking costs the guest less than inflating would.
fn initramfs(init: &[u8]) -> Vec<u8> {
    let mut archive = Archive::new();
    for directory in ["dev", "proc", "run", "sys"] {
        archive.add(directory, 0o755, Kind::Directory);
    }
    // The kernel opens the console as PID 1's standard streams before anything is mounted; /dev/null stands in if it
    // has no console.
    archive.add("dev/console", 0o600, Kind::CharDevice(5, 1));
    archive.add("dev/null", 0o666, Kind::CharDevice(1, 3));
    archive.add("init", 0o755, Kind::File(init));
    archive.finish()
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
