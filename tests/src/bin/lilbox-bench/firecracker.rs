//! Firecracker with the same kernel, initramfs, root and settings, where it is installed.

use crate::MEMORY_MIB;
use crate::guest::{self, COMMAND_LINE, DEADLINE};
use crate::ours::milliseconds;
use crate::report::{Report, Row};
use crate::stage::{Stage, on_path};
use proto::agent::{LIFECYCLE_PORT, Lifecycle, Message};
use proto::frame::FrameDecoder;
use proto::guest::Transport;
use std::fs;
use std::io::Read;
use std::os::linux::fs::MetadataExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::channel;
use std::time::Instant;
use tests::process;

const NAME: &str = "firecracker";

/// The staged Firecracker.
pub struct Firecracker {
    program: PathBuf,
    stage: PathBuf,
}

/// The serial that Firecracker gives a drive: device, special device and inode of its file, at most 20 bytes.
fn serial(file: &Path) -> String {
    let metadata = fs::metadata(file).expect("a drive's file");
    let mut text = format!("{}{}{}", metadata.st_dev(), metadata.st_rdev(), metadata.st_ino());
    text.truncate(20);
    text
}

/// Waits for the guest's `Ready` on the lifecycle port.
fn wait_until_ready(listener: &UnixListener) -> Option<Instant> {
    let (mut stream, _) = listener.accept().ok()?;
    let (mut decoder, mut buffer) = (FrameDecoder::new(), [0; 4096]);
    loop {
        let count = stream.read(&mut buffer).ok().filter(|count| *count > 0)?;
        decoder.push(&buffer[..count]);
        if let Some(frame) = decoder.next_frame().ok()? {
            let ready =
                matches!(Message::decode(frame), Ok(Message::Lifecycle(Lifecycle::Ready(_))));
            return ready.then(Instant::now);
        }
    }
}

impl Firecracker {
    /// Stages Firecracker if it is installed.
    pub fn find(stage: &Stage) -> Option<Self> {
        let program = stage.copy(&on_path("firecracker")?, "firecracker/firecracker");
        Some(Self { program, stage: stage.path("firecracker") })
    }

    fn config(&self, base: &Path, disk: &Path) -> serde_json::Value {
        serde_json::json!({
            "boot-source": {
                "kernel_image_path": self.stage.join("../share/lilbox/vmlinux"),
                "initrd_path": self.stage.join("initramfs"),
                "boot_args": COMMAND_LINE,
            },
            "drives": [
                { "drive_id": "base", "path_on_host": base, "is_root_device": false, "is_read_only": true },
                { "drive_id": "upper", "path_on_host": disk, "is_root_device": false, "is_read_only": false },
            ],
            "machine-config": { "vcpu_count": 1, "mem_size_mib": MEMORY_MIB },
            "vsock": { "guest_cid": 3, "uds_path": self.stage.join("vsock") },
            "entropy": {},
        })
    }

    /// Boots a guest until it says hello, and measures the memory of Firecracker.
    pub fn cold_boot(&self, report: &mut Report) {
        let (base, disk) = (self.stage.join("../share/lilbox/base.erofs"), self.stage.join("disk"));
        guest::fresh_disk(&disk);
        let initramfs = guest::initramfs(&serial(&base), &serial(&disk), Transport::Vsock);
        fs::write(self.stage.join("initramfs"), initramfs).expect("write the initramfs");
        let config = self.stage.join("config.json");
        fs::write(&config, self.config(&base, &disk).to_string()).expect("write the configuration");
        let sockets =
            [self.stage.join("vsock"), self.stage.join(format!("vsock_{LIFECYCLE_PORT}"))];
        for socket in sockets.iter().filter(|socket| socket.exists()) {
            fs::remove_file(socket).expect("remove the last boot's socket");
        }
        let listener = UnixListener::bind(&sockets[1]).expect("listen on the lifecycle port");
        let (sender, ready) = channel();
        // Ends with the program if the guest never comes.
        std::thread::spawn(move || sender.send(wait_until_ready(&listener)));
        let mut command = Command::new(&self.program);
        command
            .args(["--no-api", "--config-file"])
            .arg(&config)
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        let begin = Instant::now();
        let mut child = command.spawn().expect("start Firecracker");
        let end = ready.recv_timeout(DEADLINE).ok().flatten();
        if let Some(end) = end {
            report.add(Row::ColdBoot, NAME, milliseconds(end - begin));
            let own = process::memory(child.id(), MEMORY_MIB.into()).own_kib;
            report.add(Row::OwnMemory, NAME, f64::from(u32::try_from(own).expect("a size")));
        }
        child.kill().expect("end Firecracker");
        child.wait().expect("reap Firecracker");
        assert!(end.is_some(), "Firecracker's guest was not ready within {DEADLINE:?}");
    }
}
