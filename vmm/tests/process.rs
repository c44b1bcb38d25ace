//! The whole `lilbox-vmm` process, confined as always, with a "kernel" of a few bytes.
//!
//! Needs `/dev/kvm`; says so when it is missing, and fails with `LILBOX_REQUIRE_KVM=1`.

mod device;

use device::kvm;
use proto::code::Code;
use proto::control::{ControlOp, ControlReply, ControlRequest, KIND_REQUEST, MachineState};
use proto::frame::{self, FrameDecoder};
use proto::guest::{GuestConfig, Root, Transport};
use proto::launch::{
    DeviceSpec, FdIndex, FdRole, LaunchFailure, LaunchReply, LaunchRequest, MAX_FDS, MachineSpec,
};
use proto::spec::BoxId;
use proto::version::{CONTROL_PROTOCOL, LAUNCH_PROTOCOL};
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags,
    SocketType, recv, sendmsg, socketpair,
};
use std::fs::{File, OpenOptions};
use std::io::{IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};

/// `jmp $`: a guest that never says anything.
const LOOP: &[u8] = &[0xeb, 0xfe];
/// `ud2` without an IDT: a triple fault.
const TRIPLE_FAULT: &[u8] = &[0x0f, 0x0b];

/// A started VMM and the parent's end of its launch channel.
struct Vmm {
    child: Child,
    channel: Option<OwnedFd>,
    directory: tempfile::TempDir,
}

/// An ELF file with this code at 1 MiB, which is also its entry.
fn kernel(code: &[u8]) -> Vec<u8> {
    let mut elf = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x02\0\x3e\0\x01\0\0\0".to_vec();
    for value in [0x10_0000_u64, 64, 0] {
        elf.extend_from_slice(&value.to_le_bytes()); // entry, program headers, no section headers
    }
    elf.extend_from_slice(&[0, 0, 0, 0, 64, 0, 56, 0, 1, 0, 0, 0, 0, 0, 0, 0]);
    elf.extend_from_slice(&[1, 0, 0, 0, 7, 0, 0, 0]); // PT_LOAD, rwx
    let len = code.len() as u64;
    for value in [120, 0x10_0000, 0x10_0000, len, len, 0x1000] {
        elf.extend_from_slice(&value.to_le_bytes()); // offset, addresses, sizes, alignment
    }
    elf.extend_from_slice(code);
    elf
}

fn spawn() -> Vmm {
    let (parent, child) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let log = File::create(directory.path().join("log")).unwrap();
    let child = Command::new(env!("CARGO_BIN_EXE_lilbox-vmm"))
        .stdin(Stdio::from(child))
        .stdout(Stdio::null())
        .stderr(log)
        .spawn()
        .unwrap();
    Vmm { child, channel: Some(parent), directory }
}

fn read_write(path: &Path) -> OwnedFd {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).open(path).unwrap().into()
}

/// Sends a request for a machine with this kernel.
fn launch(kernel: &[u8], change: impl FnOnce(&mut LaunchRequest)) -> Option<Vmm> {
    launch_with(kernel, b"", change)
}

/// The same, with this in the console log.
fn launch_with(
    kernel: &[u8],
    console: &[u8],
    change: impl FnOnce(&mut LaunchRequest),
) -> Option<Vmm> {
    let kvm = kvm()?;
    let vmm = spawn();
    let path = |name: &str| vmm.directory.path().join(name);
    std::fs::write(path("kernel"), kernel).unwrap();
    std::fs::write(path("initramfs"), b"").unwrap();
    std::fs::write(path("console"), console).unwrap();
    std::fs::write(path("disk"), vec![0; 1 << 20]).unwrap();
    let lock = read_write(&path("lock"));
    rustix::fs::flock(&lock, rustix::fs::FlockOperation::NonBlockingLockExclusive).unwrap();
    let fds: Vec<(FdRole, OwnedFd)> = vec![
        (FdRole::Kvm, kvm.into()),
        (FdRole::Kernel, File::open(path("kernel")).unwrap().into()),
        (FdRole::Initramfs, File::open(path("initramfs")).unwrap().into()),
        (FdRole::AgentListener, UnixListener::bind(path("agent")).unwrap().into()),
        (FdRole::ControlListener, UnixListener::bind(path("control")).unwrap().into()),
        (FdRole::Lock, lock),
        (FdRole::ConsoleLog, read_write(&path("console"))),
        (FdRole::ConsoleLogOld, read_write(&path("console.old"))),
        (FdRole::Disk, read_write(&path("disk"))),
    ];
    let mut request = LaunchRequest {
        protocol: LAUNCH_PROTOCOL,
        box_id: BoxId::from_random([7; 6]),
        machine: MachineSpec {
            cpus: 1,
            memory_mib: 64,
            nested: false,
            debug_boot: true,
            devices: vec![
                DeviceSpec::Block { fd: FdIndex(8), read_only: false, serial: "upper".into() },
                DeviceSpec::Vsock,
                DeviceSpec::Rng,
                DeviceSpec::Console,
            ],
        },
        guest: GuestConfig {
            hostname: "box".into(),
            root: Root::NineP { tag: "root".into() },
            mounts: Vec::new(),
            env: Vec::new(),
            workdir: None,
            user: None,
            resolv_conf: None,
            hosts: Vec::new(),
            interfaces: Vec::new(),
            agent: Transport::Vsock,
            unix_nanos: 1,
            cpus: 1,
        },
        fds: fds.iter().map(|(role, _)| *role).collect(),
        boot_timeout_ms: 600_000,
        stop_grace_ms: 1000,
        tied_to_parent: false,
    };
    change(&mut request);
    let borrowed: Vec<BorrowedFd<'_>> = fds.iter().map(|(_, fd)| fd.as_fd()).collect();
    send(&vmm, &proto::codec::encode(&request), &borrowed);
    Some(vmm)
}

fn send(vmm: &Vmm, bytes: &[u8], fds: &[BorrowedFd<'_>]) {
    let mut space = vec![MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(fds.is_empty() || control.push(SendAncillaryMessage::ScmRights(fds)));
    let channel = vmm.channel.as_ref().unwrap();
    sendmsg(channel, &[IoSlice::new(bytes)], &mut control, SendFlags::empty()).unwrap();
}

impl Vmm {
    fn failure(&self) -> LaunchFailure {
        let mut bytes = vec![0; 1 << 16];
        let (count, _) =
            recv(self.channel.as_ref().unwrap(), &mut bytes[..], RecvFlags::empty()).unwrap();
        assert_ne!(count, 0, "the VMM ended without a reply: {}", self.log());
        match proto::codec::decode(&bytes[..count]).unwrap() {
            LaunchReply::Failed(failure) => failure,
            LaunchReply::Ready(ready) => panic!("{ready:?}"),
        }
    }

    fn end(mut self) -> (ExitStatus, String) {
        let status = self.child.wait().unwrap();
        (status, self.log())
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.directory.path().join("log")).unwrap()
    }

    fn control(&self) -> UnixStream {
        // The listener exists before the process does; the request waits until the machine is built.
        UnixStream::connect(self.directory.path().join("control")).unwrap()
    }

    fn ask(&self, op: ControlOp) -> (UnixStream, ControlReply) {
        let mut stream = self.control();
        let payload = proto::codec::encode(&ControlRequest { protocol: CONTROL_PROTOCOL, op });
        let header = frame::header(KIND_REQUEST, payload.len()).unwrap();
        stream.write_all(&[&header[..], &payload].concat()).unwrap();
        let mut decoder = FrameDecoder::new();
        loop {
            if let Some(frame) = decoder.next_frame().unwrap() {
                return (stream, proto::codec::decode(&frame.payload).unwrap());
            }
            let mut buffer = [0; 4096];
            let count = stream.read(&mut buffer).unwrap();
            assert_ne!(count, 0, "{}", self.log());
            decoder.push(&buffer[..count]);
        }
    }
}

#[test]
fn a_parent_that_goes_away_takes_the_process_with_it() {
    let mut vmm = spawn();
    vmm.channel = None;
    let (status, _) = vmm.end();
    assert_eq!(status.code(), Some(1), "before it has said anything");

    let Some(mut vmm) = launch(&kernel(LOOP), |_| {}) else { return };
    let (_, reply) = vmm.ask(ControlOp::Status);
    assert!(matches!(reply, ControlReply::Status(_)));
    vmm.channel = None;
    let (status, log) = vmm.end();
    assert_eq!(status.code(), Some(1), "while the guest boots: {log}");
}

#[test]
fn garbage_on_the_launch_channel_gets_an_answer() {
    let vmm = spawn();
    send(&vmm, b"GET / HTTP/1.1", &[]);
    assert_eq!(vmm.failure().code, Code::BadMessage);
    assert_eq!(vmm.end().0.code(), Some(1));
}

#[test]
fn what_cannot_be_built_is_named() {
    type Case = (&'static [u8], fn(&mut LaunchRequest), Code, &'static str);
    let cases: [Case; 5] = [
        (b"#!/bin/sh\n", |_| {}, Code::KernelInvalid, "not an uncompressed ELF image"),
        (b"", |_| {}, Code::KernelInvalid, "not an uncompressed ELF image"),
        (
            LOOP,
            |r| r.machine.memory_mib = u32::MAX,
            Code::NoMemory,
            "of RAM were asked for, but the host has",
        ),
        (LOOP, |r| r.machine.cpus = 200, Code::InvalidValue, "number of vCPUs is 200"),
        (LOOP, |r| r.protocol = 77, Code::ProtocolMismatch, "protocol 77"),
    ];
    for (code, change, expected, text) in cases {
        let image = if code == LOOP { kernel(code) } else { code.to_vec() };
        let Some(vmm) = launch(&image, change) else { return };
        let failure = vmm.failure();
        assert_eq!(failure.code, expected, "{failure:?}");
        assert!(failure.message.contains(text), "{failure:?}");
        assert_eq!(vmm.end().0.code(), Some(1));
    }
}

#[test]
fn a_triple_fault_before_the_guest_is_ready_is_told_with_its_exit() {
    let Some(vmm) = launch(&kernel(TRIPLE_FAULT), |_| {}) else { return };
    let failure = vmm.failure();
    assert_eq!(failure.code, Code::GuestDied);
    assert_eq!(
        failure.last_exit.as_deref(),
        Some("vCPU 0: shutdown (reset or triple fault) (exit 1)")
    );
    assert_eq!(vmm.end().0.code(), Some(1));
}

#[test]
fn the_last_words_on_the_console_come_with_the_failure() {
    // mov edx, 0x3f8; for each byte: mov al, byte; out dx, al; then a triple fault
    let mut code = vec![0xba, 0xf8, 0x03, 0x00, 0x00];
    for byte in b"Booting\nKernel panic - not syncing: no root\n" {
        code.extend_from_slice(&[0xb0, *byte, 0xee]);
    }
    code.extend_from_slice(TRIPLE_FAULT);
    let Some(vmm) = launch(&kernel(&code), |_| {}) else { return };
    let failure = vmm.failure();
    assert_eq!(failure.code, Code::GuestPanic);
    assert!(failure.message.ends_with("Kernel panic - not syncing: no root"), "{failure:?}");
    assert_eq!(failure.console_tail, ["Booting", "Kernel panic - not syncing: no root"]);
    let console = std::fs::read(vmm.directory.path().join("console")).unwrap();
    assert!(console.starts_with(b"Booting\n"));
    assert_eq!(vmm.end().0.code(), Some(1));
}

/// The thread of the processor moves the log itself, with the few system calls that it has.
#[test]
fn a_full_console_log_is_moved_while_confined() {
    const CAP_BYTES: usize = 1 << 20;
    let mut code = vec![0xba, 0xf8, 0x03, 0x00, 0x00]; // mov edx, 0x3f8
    for byte in b"12345678" {
        code.extend_from_slice(&[0xb0, *byte, 0xee]); // mov al, byte; out dx, al
    }
    code.extend_from_slice(TRIPLE_FAULT);
    let Some(vmm) = launch_with(&kernel(&code), &vec![b'.'; CAP_BYTES - 4], |_| {}) else { return };
    assert_eq!(vmm.failure().code, Code::GuestDied);
    let read = |name| std::fs::read(vmm.directory.path().join(name)).unwrap();
    let (current, old) = (read("console"), read("console.old"));
    assert!(current.len() < 8 && old.len() >= CAP_BYTES - 4);
    assert!([&old[CAP_BYTES - 4..], &current].concat() == b"12345678");
    assert_eq!(vmm.end().0.code(), Some(1));
}

#[test]
fn a_guest_that_never_says_hello_is_given_up() {
    let Some(vmm) = launch(&kernel(LOOP), |request| request.boot_timeout_ms = 1) else { return };
    let failure = vmm.failure();
    assert_eq!(failure.code, Code::BootTimeout);
    assert!(failure.last_exit.is_some());
    assert_eq!(vmm.end().0.code(), Some(1));
}

#[test]
fn status_kill_and_signals_while_the_guest_boots() {
    let Some(vmm) = launch(&kernel(LOOP), |request| request.machine.cpus = 2) else { return };
    let (_, reply) = vmm.ask(ControlOp::Status);
    let ControlReply::Status(status) = reply else { panic!("{reply:?}") };
    assert_eq!((status.pid, status.state, status.cpus), (vmm.child.id(), MachineState::Booting, 2));
    assert!(status.isolation.iter().any(|layer| layer == "seccomp"));
    let (mut stream, reply) = vmm.ask(ControlOp::Kill);
    assert_eq!(reply, ControlReply::Stopping);
    assert_eq!(stream.read(&mut [0]).unwrap(), 0, "end of file tells that it is over");
    assert_eq!(vmm.failure().code, Code::Interrupted);
    let (status, log) = vmm.end();
    assert_eq!(status.code(), Some(0), "{log}");

    let Some(vmm) = launch(&kernel(LOOP), |_| {}) else { return };
    vmm.ask(ControlOp::Status);
    let pid = nix::unistd::Pid::from_raw(vmm.child.id().cast_signed());
    for ignored in [nix::sys::signal::SIGINT, nix::sys::signal::SIGHUP] {
        nix::sys::signal::kill(pid, ignored).unwrap();
    }
    assert!(matches!(vmm.ask(ControlOp::Status).1, ControlReply::Status(_)));
    nix::sys::signal::kill(pid, nix::sys::signal::SIGTERM).unwrap();
    assert_eq!(vmm.failure().code, Code::Interrupted);
    let (status, log) = vmm.end();
    assert_eq!((status.code(), status.signal()), (Some(0), None), "{log}");
}

#[test]
fn the_control_socket_outlives_garbage_and_many_silent_clients() {
    let Some(vmm) = launch(&kernel(LOOP), |_| {}) else { return };
    for bytes in [&b"\xff\xff\xff\xff\xff\xff"[..], b"\0\0\0\0\0", b"SSH-2.0-OpenSSH\r\n"] {
        let mut stream = vmm.control();
        stream.write_all(bytes).unwrap();
        drop(stream);
    }
    // Fewer than the cap: the next client is served at once.
    let silent: Vec<UnixStream> = (0..10).map(|_| vmm.control()).collect();
    assert!(matches!(vmm.ask(ControlOp::Status).1, ControlReply::Status(_)));
    drop(silent);
    assert_eq!(vmm.ask(ControlOp::Kill).1, ControlReply::Stopping);
    assert_eq!(vmm.end().0.code(), Some(0));
}

#[test]
fn the_lock_is_held_until_the_end_and_free_afterwards() {
    let Some(vmm) = launch(&kernel(LOOP), |_| {}) else { return };
    vmm.ask(ControlOp::Status);
    let lock = File::open(vmm.directory.path().join("lock")).unwrap();
    let try_lock =
        || rustix::fs::flock(&lock, rustix::fs::FlockOperation::NonBlockingLockExclusive);
    assert_eq!(try_lock(), Err(rustix::io::Errno::WOULDBLOCK));
    vmm.ask(ControlOp::Kill);
    let (status, log) = vmm.end();
    assert_eq!((status.code(), try_lock()), (Some(0), Ok(())), "{log}");
}
