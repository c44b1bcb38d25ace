//! The launch channel: from one packet to a specification and the descriptors it names, and back to one reply.
//!
//! The parent is trusted (it owns the box); what is checked here protects against mistakes and old or new versions.

use proto::code::Code;
use proto::launch::{
    DeviceSpec, FdIndex, FdRole, LaunchFailure, LaunchReply, LaunchRequest, MAX_FDS,
    MAX_REQUEST_BYTES,
};
use proto::spec::{MAX_CPUS, MIN_MEMORY_MIB};
use proto::version::LAUNCH_PROTOCOL;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendFlags, recv, recvmsg,
    send,
};
use std::fs::File;
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixListener;

/// A launch that cannot be understood.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    /// The parent went away.
    #[error("the launch channel was closed before a request came")]
    Closed,
    /// The channel does not work.
    #[error("cannot read the launch channel")]
    Receive(#[source] io::Error),
    /// The packet was too long or had too many descriptors.
    #[error("the launch request is over {MAX_REQUEST_BYTES} bytes or {MAX_FDS} descriptors")]
    TooLong,
    /// Not a request.
    #[error("cannot decode the launch request")]
    Decode(#[from] proto::codec::DecodeError),
    /// Written by another version.
    #[error("the launch request is in protocol {0}, this build speaks {LAUNCH_PROTOCOL}")]
    Protocol(u16),
    /// Roles and descriptors do not match.
    #[error("the launch request names {named} descriptors and carries {carried}")]
    FdCount {
        /// Roles listed.
        named: usize,
        /// Descriptors that came.
        carried: usize,
    },
    /// A descriptor is missing.
    #[error("the launch request has no descriptor for {0:?}")]
    MissingFd(FdRole),
    /// A device names a descriptor that is not a disk, or is another device's.
    #[error("no disk has descriptor {}", .0.0)]
    BadDisk(FdIndex),
    /// A number is out of range.
    #[error("{what} is {value}, allowed are {low} to {high}")]
    OutOfRange {
        /// Setting.
        what: &'static str,
        /// Its value.
        value: u64,
        /// Least.
        low: u64,
        /// Most.
        high: u64,
    },
    /// A device that can exist only once is there twice.
    #[error("the machine has two devices {0:?}")]
    TwiceTheDevice(DeviceSpec),
    /// The machine has no vsock, so nobody could ever reach the guest.
    #[error("the machine has no vsock device")]
    NoVsock,
}

impl LaunchError {
    /// Code word for the reply.
    #[must_use]
    pub fn code(&self) -> Code {
        match self {
            Self::Closed => Code::Interrupted,
            Self::Receive(_) => Code::Io,
            Self::Protocol(_) => Code::ProtocolMismatch,
            Self::OutOfRange { .. } => Code::InvalidValue,
            _ => Code::BadMessage,
        }
    }
}

/// The VMM's end of the channel.
#[derive(Debug)]
pub struct Channel {
    socket: OwnedFd,
}

/// The descriptors of a launch.
#[derive(Debug)]
pub struct Descriptors {
    /// `/dev/kvm`.
    pub kvm: OwnedFd,
    /// The kernel.
    pub kernel: File,
    /// The initramfs.
    pub initramfs: File,
    /// Joined to the guest's agent.
    pub agent_listener: UnixListener,
    /// The control socket.
    pub control_listener: UnixListener,
    /// The box's lock, held open until the process ends.
    pub lock: OwnedFd,
    /// The console log.
    pub console_log: File,
    /// The console log before it.
    pub console_log_old: File,
    /// Disks.
    pub disks: Disks,
}

/// Disks, by the index that their devices name.
#[derive(Debug, Default)]
pub struct Disks(Vec<(FdIndex, File)>);

impl Disks {
    /// Takes out the disk of a device.
    ///
    /// # Errors
    /// [`LaunchError::BadDisk`] if there is none with this index (any more).
    pub fn take(&mut self, index: FdIndex) -> Result<File, LaunchError> {
        let position =
            self.0.iter().position(|(fd, _)| *fd == index).ok_or(LaunchError::BadDisk(index))?;
        Ok(self.0.swap_remove(position).1)
    }
}

impl Channel {
    /// The channel over this socket.
    #[must_use]
    pub fn new(socket: OwnedFd) -> Self {
        Self { socket }
    }

    /// Waits for the request.
    ///
    /// # Errors
    /// [`LaunchError`].
    pub fn receive(&self) -> Result<(LaunchRequest, Descriptors), LaunchError> {
        // On the heap and gone after this: the main thread's stack is not the place for it.
        let mut bytes = vec![0; MAX_REQUEST_BYTES];
        let mut space = vec![MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let received = loop {
            let mut buffers = [IoSliceMut::new(&mut bytes)];
            match recvmsg(&self.socket, &mut buffers, &mut control, RecvFlags::CMSG_CLOEXEC) {
                Ok(received) => break received,
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(LaunchError::Receive(error.into())),
            }
        };
        let fds: Vec<OwnedFd> = control
            .drain()
            .filter_map(|message| {
                if let RecvAncillaryMessage::ScmRights(fds) = message { Some(fds) } else { None }
            })
            .flatten()
            .collect();
        if received.bytes == 0 {
            return Err(LaunchError::Closed);
        }
        if received.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) {
            return Err(LaunchError::TooLong);
        }
        let request: LaunchRequest = proto::codec::decode(&bytes[..received.bytes])?;
        let descriptors = check(&request, fds)?;
        Ok((request, descriptors))
    }

    /// Sends the one reply. The parent may be gone; then nobody needs it.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn reply(&self, reply: &LaunchReply) -> io::Result<()> {
        let bytes = proto::codec::encode(reply);
        send(&self.socket, &bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)?;
        Ok(())
    }

    /// Throws away a packet that nobody asked for.
    pub fn discard(&self) {
        if let Err(error) = recv(&self.socket, &mut [0_u8; 16][..], RecvFlags::DONTWAIT) {
            log::debug!("launch channel: {error}");
        }
    }

    /// Says that the box will not start, and why.
    pub fn fail(&self, failure: LaunchFailure) {
        log::error!("start failed ({}): {}", failure.code, failure.message);
        if let Err(error) = self.reply(&LaunchReply::Failed(failure)) {
            log::warn!("the parent did not take the reply: {error}");
        }
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// A message with its causes.
#[must_use]
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text += &format!(": {cause}");
        source = cause.source();
    }
    text
}

/// Closes all descriptors but the first three: what the parent had open and forgot to mark.
///
/// # Errors
/// The kernel's error.
pub fn close_inherited() -> io::Result<()> {
    #[expect(unsafe_code, reason = "UNSAFETY: closes descriptors by number")]
    // SAFETY: called first in `main`, when this program has opened none that would be closed under its owner.
    let result = unsafe { libc::close_range(3, libc::c_uint::MAX, 0) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn check(request: &LaunchRequest, fds: Vec<OwnedFd>) -> Result<Descriptors, LaunchError> {
    if request.protocol != LAUNCH_PROTOCOL {
        return Err(LaunchError::Protocol(request.protocol));
    }
    let machine = &request.machine;
    in_range("the number of vCPUs", machine.cpus.into(), 1, MAX_CPUS.into())?;
    in_range("RAM in MiB", machine.memory_mib.into(), MIN_MEMORY_MIB.into(), u32::MAX.into())?;
    let devices = &machine.devices;
    in_range(
        "the number of devices",
        devices.len() as u64,
        0,
        crate::machine::layout::MAX_DEVICES as u64,
    )?;
    for single in [DeviceSpec::Vsock, DeviceSpec::Rng, DeviceSpec::Console] {
        if devices.iter().filter(|device| **device == single).count() > 1 {
            return Err(LaunchError::TwiceTheDevice(single));
        }
    }
    if !devices.contains(&DeviceSpec::Vsock) {
        return Err(LaunchError::NoVsock);
    }
    sort(request, fds)
}

fn in_range(what: &'static str, value: u64, low: u64, high: u64) -> Result<(), LaunchError> {
    if (low..=high).contains(&value) {
        Ok(())
    } else {
        Err(LaunchError::OutOfRange { what, value, low, high })
    }
}

fn sort(request: &LaunchRequest, fds: Vec<OwnedFd>) -> Result<Descriptors, LaunchError> {
    if fds.len() != request.fds.len() {
        return Err(LaunchError::FdCount { named: request.fds.len(), carried: fds.len() });
    }
    let mut disks = Vec::new();
    let mut others = Vec::new();
    for ((index, role), fd) in (0..=u8::MAX).zip(&request.fds).zip(fds) {
        match role {
            FdRole::Disk => disks.push((FdIndex(index), File::from(fd))),
            role => others.push((*role, fd)),
        }
    }
    let mut take = |role| {
        let position = others
            .iter()
            .position(|(found, _)| *found == role)
            .ok_or(LaunchError::MissingFd(role))?;
        Ok::<_, LaunchError>(others.swap_remove(position).1)
    };
    let descriptors = Descriptors {
        kvm: take(FdRole::Kvm)?,
        kernel: take(FdRole::Kernel)?.into(),
        initramfs: take(FdRole::Initramfs)?.into(),
        agent_listener: take(FdRole::AgentListener)?.into(),
        control_listener: take(FdRole::ControlListener)?.into(),
        lock: take(FdRole::Lock)?,
        console_log: take(FdRole::ConsoleLog)?.into(),
        console_log_old: take(FdRole::ConsoleLogOld)?.into(),
        disks: Disks(disks),
    };
    let mut seen = Vec::new();
    for device in &request.machine.devices {
        if let DeviceSpec::Block { fd, .. } = device {
            if seen.contains(fd) || !descriptors.disks.0.iter().any(|(index, _)| index == fd) {
                return Err(LaunchError::BadDisk(*fd));
            }
            seen.push(*fd);
        }
    }
    Ok(descriptors)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::guest::{GuestConfig, Root, Transport};
    use proto::launch::MachineSpec;
    use proto::spec::BoxId;
    use rustix::net::{
        AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SocketFlags, SocketType, sendmsg,
        socketpair,
    };
    use std::io::IoSlice;

    const ROLES: [FdRole; 9] = [
        FdRole::Kvm,
        FdRole::Kernel,
        FdRole::Initramfs,
        FdRole::AgentListener,
        FdRole::ControlListener,
        FdRole::Lock,
        FdRole::ConsoleLog,
        FdRole::ConsoleLogOld,
        FdRole::Disk,
    ];

    fn request() -> LaunchRequest {
        LaunchRequest {
            protocol: LAUNCH_PROTOCOL,
            box_id: BoxId::from_random([1; 6]),
            machine: MachineSpec {
                cpus: 1,
                memory_mib: 128,
                nested: false,
                debug_boot: false,
                devices: vec![
                    DeviceSpec::Block { fd: FdIndex(8), read_only: true, serial: "base".into() },
                    DeviceSpec::Vsock,
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
            fds: ROLES.to_vec(),
            boot_timeout_ms: 1000,
            stop_grace_ms: 1000,
            tied_to_parent: false,
        }
    }

    fn pair() -> (OwnedFd, Channel) {
        let (parent, child) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
                .unwrap();
        (parent, Channel::new(child))
    }

    fn send_bytes(parent: &OwnedFd, bytes: &[u8], fd_count: usize) {
        let file = tempfile::tempfile().unwrap();
        let fds = vec![file.as_fd(); fd_count];
        let mut space = vec![MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
        sendmsg(parent, &[IoSlice::new(bytes)], &mut control, SendFlags::empty()).unwrap();
    }

    fn receive(
        change: impl FnOnce(&mut LaunchRequest),
    ) -> Result<(LaunchRequest, Descriptors), LaunchError> {
        let (parent, channel) = pair();
        let mut request = request();
        change(&mut request);
        send_bytes(&parent, &proto::codec::encode(&request), 9);
        channel.receive()
    }

    #[test]
    fn a_request_arrives_with_its_descriptors_closed_on_exec() {
        let (_, mut descriptors) = receive(|_| {}).unwrap();
        let flags = rustix::io::fcntl_getfd(&descriptors.kvm).unwrap();
        assert!(flags.contains(rustix::io::FdFlags::CLOEXEC));
        assert!(descriptors.disks.take(FdIndex(8)).is_ok());
        assert!(matches!(
            descriptors.disks.take(FdIndex(8)),
            Err(LaunchError::BadDisk(FdIndex(8)))
        ));
    }

    #[test]
    fn mistakes_are_named() {
        let text = |change: fn(&mut LaunchRequest)| receive(change).unwrap_err().to_string();
        assert!(text(|r| r.protocol = 99).contains("protocol 99"));
        assert!(text(|r| r.machine.cpus = 0).contains("vCPUs is 0, allowed are 1 to 64"));
        assert!(text(|r| r.machine.cpus = 65).contains("vCPUs is 65"));
        assert!(text(|r| r.machine.memory_mib = 1).contains("RAM in MiB is 1"));
        assert!(text(|r| r.fds.truncate(8)).contains("names 8 descriptors and carries 9"));
        assert!(text(|r| r.fds[0] = FdRole::Lock).contains("no descriptor for Kvm"));
        assert!(text(|r| r.machine.devices = vec![]).contains("no vsock"));
        assert!(text(|r| r.machine.devices.push(DeviceSpec::Vsock)).contains("two devices Vsock"));
        assert!(
            text(|r| r.machine.devices.push(r.machine.devices[0].clone()))
                .contains("no disk has descriptor 8")
        );
        let block = |fd| DeviceSpec::Block { fd, read_only: false, serial: String::new() };
        assert!(
            text(|r| r.machine.devices.extend(vec![DeviceSpec::Rng; 30]))
                .contains("number of devices")
        );
        let not_a_disk = receive(|r| r.machine.devices.push(block(FdIndex(0))));
        assert!(matches!(not_a_disk, Err(LaunchError::BadDisk(FdIndex(0)))));
    }

    #[test]
    fn a_closed_channel_and_garbage_are_told_apart() {
        let (parent, channel) = pair();
        drop(parent);
        assert!(matches!(channel.receive(), Err(LaunchError::Closed)));
        let (parent, channel) = pair();
        send_bytes(&parent, b"not a request", 1);
        assert!(matches!(channel.receive(), Err(LaunchError::Decode(_))));
        let (parent, channel) = pair();
        send_bytes(&parent, &vec![0; MAX_REQUEST_BYTES + 1], 1);
        assert!(matches!(channel.receive(), Err(LaunchError::TooLong)));
    }

    #[test]
    fn a_reply_to_a_vanished_parent_is_an_error_not_a_signal() {
        let (parent, channel) = pair();
        drop(parent);
        assert!(channel.reply(&LaunchReply::Ready(proto::launch::Ready::default())).is_err());
    }
}
