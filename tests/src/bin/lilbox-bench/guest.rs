//! The guest that every VMM boots: lilbox's own kernel, initramfs and root, with a configuration for its place.

use crate::stage::Stage;
use proto::cpio::{Archive, Kind};
use proto::guest::{CONFIG_PATH, GuestConfig, Root, Transport};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// How long a guest may take until it is ready: this only has to end what hangs.
pub const DEADLINE: Duration = Duration::from_secs(120);

/// What every kernel is told; the VMM's devices come on top.
pub const COMMAND_LINE: &str = "quiet reboot=t panic=-1 random.trust_cpu=on no_timer_check";

/// The initramfs of lilbox's own boxes, with this guest's configuration behind it.
pub fn initramfs(base_serial: &str, upper_serial: &str, agent: Transport) -> Vec<u8> {
    let config = GuestConfig {
        hostname: "bench".into(),
        root: Root::Overlay {
            base_serial: base_serial.into(),
            base_fs: "erofs".into(),
            upper_serial: upper_serial.into(),
        },
        mounts: Vec::new(),
        env: Vec::new(),
        workdir: None,
        user: None,
        resolv_conf: None,
        hosts: Vec::new(),
        interfaces: Vec::new(),
        agent,
        unix_nanos: 1_700_000_000_000_000_000,
        cpus: 1,
    };
    let mut archive = Archive::new();
    archive.add(CONFIG_PATH, 0o600, Kind::File(&proto::codec::encode(&config)));
    let mut initramfs = boxes::initramfs::INITRAMFS.to_vec();
    initramfs.extend_from_slice(&archive.finish());
    initramfs
}

/// Makes a disk like those of lilbox's boxes, fresh for one boot.
pub fn fresh_disk(path: &Path) {
    let disk = fs::File::create(path).expect("make a disk");
    boxes::empty_disk::write_empty_disk(&disk, 4 << 30).expect("format the disk");
}

/// Unpacks the base image into a directory of the stage.
pub fn unpack_base(stage: &Stage, name: &str) -> PathBuf {
    let root = stage.path(name);
    let mut unpack = Command::new("fsck.erofs");
    unpack.arg(format!("--extract={}", root.display())).arg(stage.path("share/lilbox/base.erofs"));
    assert!(unpack.status().expect("run fsck.erofs").success(), "unpacking the base image failed");
    root
}
