//! QEMU's microvm machine with the same kernel, initramfs, root and settings.

use crate::MEMORY_MIB;
use crate::guest::{self, COMMAND_LINE, DEADLINE};
use crate::ours::milliseconds;
use crate::report::{Report, Row};
use crate::stage::{Stage, on_path};
use proto::guest::Transport;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::mpsc::channel;
use std::time::Instant;
use tests::process;

const NAME: &str = "qemu-microvm";

/// What guest-init writes to its console when its agent listens.
const READY: &str = "lilbox-init: ready";

/// The staged QEMU.
pub struct Qemu {
    program: PathBuf,
    libraries: PathBuf,
    firmware: PathBuf,
    stage: PathBuf,
}

impl Qemu {
    /// Stages QEMU if it is installed.
    pub fn find(stage: &Stage) -> Option<Self> {
        let installed = on_path("qemu-system-x86_64")?;
        let (program, libraries) = stage.copy_program(&installed, "qemu-system-x86_64");
        let firmware = fs::canonicalize("/usr/share/qemu/bios-microvm.bin").ok()?;
        let firmware = stage.copy(&firmware, "qemu-system-x86_64/bios-microvm.bin");
        let secret = serde_bytes::ByteBuf::from(b"unused".to_vec());
        let initramfs = guest::initramfs("base", "upper", Transport::Tcp { port: 1024, secret });
        fs::write(stage.path("qemu-initramfs"), initramfs).expect("write the initramfs");
        Some(Self { program, libraries, firmware, stage: stage.path("") })
    }

    /// Boots a guest until its agent listens, and measures the memory of QEMU.
    pub fn cold_boot(&self, report: &mut Report) {
        let disk = self.stage.join("qemu-disk");
        guest::fresh_disk(&disk);
        let file = |name: &str| self.stage.join(name).to_string_lossy().into_owned();
        let mut command = Command::new(&self.program);
        command.env("LD_LIBRARY_PATH", &self.libraries).arg("-bios").arg(&self.firmware).args([
            "-nodefaults",
            "-no-user-config",
            "-no-reboot",
            "-display",
            "none",
            "-M",
            "microvm,pit=off,pic=off,rtc=off,isa-serial=off,x-option-roms=off,acpi=off",
            "-accel",
            "kvm",
            "-cpu",
            "host",
            "-smp",
            "1",
            "-m",
            &MEMORY_MIB.to_string(),
            "-kernel",
            &file("share/lilbox/vmlinux"),
            "-initrd",
            &file("qemu-initramfs"),
            "-append",
            &format!("console=hvc0 {COMMAND_LINE}"),
            "-drive",
            &format!(
                "if=none,id=base,format=raw,readonly=on,file={}",
                file("share/lilbox/base.erofs")
            ),
            "-device",
            "virtio-blk-device,drive=base,serial=base",
            "-drive",
            &format!("if=none,id=upper,format=raw,file={}", disk.display()),
            "-device",
            "virtio-blk-device,drive=upper,serial=upper",
            "-object",
            "rng-random,id=rng,filename=/dev/urandom",
            "-device",
            "virtio-rng-device,rng=rng",
            "-device",
            "virtio-serial-device",
            "-chardev",
            "stdio,id=console,signal=off",
            "-device",
            "virtconsole,chardev=console",
        ]);
        let begin = Instant::now();
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .expect("start QEMU");
        let console = BufReader::new(child.stdout.take().expect("piped"));
        let (sender, ready) = channel();
        let reader = std::thread::spawn(move || {
            let mut lines = console.lines().map_while(Result::ok);
            let ready = lines.any(|line| line.contains(READY));
            // The receiver has gone if the deadline passed.
            let _ = sender.send(ready.then(Instant::now));
        });
        let end = ready.recv_timeout(DEADLINE).ok().flatten();
        if let Some(end) = end {
            report.add(Row::ColdBoot, NAME, milliseconds(end - begin));
        }
        let own = process::memory(child.id(), MEMORY_MIB.into()).own_kib;
        report.add(Row::OwnMemory, NAME, f64::from(u32::try_from(own).expect("a size")));
        child.kill().expect("end QEMU");
        child.wait().expect("reap QEMU");
        reader.join().expect("read QEMU's console");
        assert!(end.is_some(), "QEMU's guest was not ready within {DEADLINE:?}");
    }
}
