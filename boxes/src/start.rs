//! Starts a box: opens what its VMM needs, hands it over, waits until the guest's agent listens.
//!
//! The VMM gets descriptors, never paths; this file decides what it can reach.

use crate::home::Home;
use crate::launch::{self, Launched, Vmm};
use crate::lock::{Gate, Lock};
use crate::machine;
use crate::paths::{BoxFiles, create_private, remove_tree};
use crate::store::{BoxRecord, State};
use crate::{Error, Result, clock, gc, image, initramfs::INITRAMFS, resolv};
use proto::code::Code;
use proto::guest::{GuestConfig, Root, Transport};
use proto::launch::{DeviceSpec, FdIndex, FdRole, LaunchRequest, MachineSpec};
use proto::version::LAUNCH_PROTOCOL;
use rustix::fs::{MemfdFlags, memfd_create};
use serde_bytes::ByteBuf;
use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::time::Duration;

/// How long a guest may take until its agent listens. A host that is emulated itself needs seconds.
const BOOT_TIMEOUT: Duration = Duration::from_secs(60);

/// How often a boot is tried inside the machine. An emulated CPU loses about one boot in a hundred: the guest spins on a
/// lock that nobody holds, or runs into an instruction that is not there (`docs/decisions/0006`).
const EMULATED_ATTEMPTS: u32 = 3;

/// How long one of several attempts may take, with a second more for each vCPU: a boot needs some two seconds there, and
/// about half a second for each vCPU.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(20);

/// How long processes have to end when a box is stopped, unless the user says otherwise.
pub const STOP_GRACE: Duration = Duration::from_secs(10);

/// Serial of the image's disk.
const BASE_SERIAL: &str = "base";

/// Serial of the box's own disk.
const UPPER_SERIAL: &str = "upper";

/// What came of a start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Started {
    /// It runs now.
    Now(Launched),
    /// It ran already.
    Already,
}

/// Starts a box that exists.
///
/// # Errors
/// [`Error::BoxNotFound`], [`Error::BoxBusy`], or whatever keeps it from starting.
pub fn start(home: &Home, name: &str, cancel: Option<BorrowedFd<'_>>) -> Result<Started> {
    gc::collect(home)?;
    let record = home.store.find(name)?;
    if record.state != State::Created {
        return Err(Error::BoxBusy(record.name));
    }
    let path = home.files(&record).lock();
    let taken = Gate::exclusive(&home.dirs.gate())?.take_existing(&path)?;
    // Removed since it was looked up, and perhaps made anew? The lock is the old one's.
    if home.store.find(name)?.id != record.id {
        return Err(Error::BoxBusy(record.name));
    }
    let Some(lock) = taken else {
        if !path.exists() {
            return Err(Error::StateInvalid {
                path,
                cause: "the box's lock file is missing".into(),
            });
        }
        // Another command may be just about to start it; it says so when that fails.
        return Ok(Started::Already);
    };
    let (vmm, launched) = boot(home, &record, lock, false, cancel)?;
    home.store.note_start(&record.id, &launched, clock::unix_millis())?;
    vmm.release();
    Ok(Started::Now(launched))
}

/// Boots a box whose lock this process holds. The VMM ends when the value is dropped.
pub(crate) fn boot(
    home: &Home,
    record: &BoxRecord,
    lock: Lock,
    tied_to_parent: bool,
    cancel: Option<BorrowedFd<'_>>,
) -> Result<(Vmm, Launched)> {
    check_memory(record.spec.memory_mib)?;
    let mut left = if machine::is_inside() { EMULATED_ATTEMPTS } else { 1 };
    loop {
        left -= 1;
        let patience = ATTEMPT_TIMEOUT + Duration::from_secs(record.spec.cpus.into());
        let timeout = if left == 0 { BOOT_TIMEOUT } else { patience };
        match attempt(home, record, &lock, tied_to_parent, timeout, cancel) {
            Err(Error::Launch(failure)) if left > 0 && is_lost(failure.code) => {
                log::warn!("the emulated CPU lost the box's boot ({}): trying again", failure.code);
            }
            result => return result,
        }
    }
}

/// Whether a boot may have failed because of the CPU it ran on.
fn is_lost(code: Code) -> bool {
    matches!(code, Code::BootTimeout | Code::GuestDied | Code::GuestPanic)
}

/// Boots a box once. When it fails, its VMM is gone.
fn attempt(
    home: &Home,
    record: &BoxRecord,
    lock: &Lock,
    tied_to_parent: bool,
    boot_timeout: Duration,
    cancel: Option<BorrowedFd<'_>>,
) -> Result<(Vmm, Launched)> {
    let files = home.files(record);
    let mut parts = Parts::default();
    parts.add(FdRole::Kvm, open_kvm(&home.install.kvm)?);
    parts.add(FdRole::Kernel, open_kernel(home, record)?);
    parts.add(FdRole::Initramfs, initramfs()?);
    let base = image::verify(&home.dirs, &home.install, record)?;
    let base_fs = image::detect(&base, &record.image_file)?.ok_or_else(|| Error::ImageInvalid {
        reference: record.spec.image.clone(),
        cause: format!("{} is neither EROFS nor ext4", record.image_file.display()),
    })?;
    let base = parts.add(FdRole::Disk, base);
    let upper = parts.add(FdRole::Disk, open_rw(&files.disk(), false)?);
    parts.add(FdRole::AgentListener, listen(&files, &files.agent_socket())?);
    parts.add(FdRole::ControlListener, listen(&files, &files.control_socket())?);
    parts.add(FdRole::Lock, lock.file().try_clone().map_err(Error::io("copy the lock"))?);
    parts.add(FdRole::ConsoleLog, open_rw(&files.console_log(), true)?);
    parts.add(FdRole::ConsoleLogOld, open_rw(&files.console_log_old(), true)?);

    let request = LaunchRequest {
        protocol: LAUNCH_PROTOCOL,
        box_id: record.id.clone(),
        machine: MachineSpec {
            cpus: record.spec.cpus,
            memory_mib: record.spec.memory_mib,
            nested: record.spec.nested,
            debug_boot: record.spec.debug_boot,
            devices: vec![
                DeviceSpec::Block { fd: base, read_only: true, serial: BASE_SERIAL.into() },
                DeviceSpec::Block { fd: upper, read_only: false, serial: UPPER_SERIAL.into() },
                DeviceSpec::Vsock,
                DeviceSpec::Rng,
                DeviceSpec::Console,
            ],
        },
        guest: guest_config(record, base_fs.name(), resolv::for_guest(), clock::unix_nanos()),
        fds: parts.roles.clone(),
        boot_timeout_ms: millis(boot_timeout),
        stop_grace_ms: millis(STOP_GRACE),
        tied_to_parent,
    };
    let log = open_log(&files.vmm_log())?;
    let borrowed: Vec<_> = parts.descriptors.iter().map(AsFd::as_fd).collect();
    let mut vmm = launch::spawn(&home.install.vmm, log, &request, &borrowed)?;
    lock.hand_over(vmm.pid())?;
    // From here on the box's sockets are the VMM's alone: if it dies, everybody sees it at once.
    drop(borrowed);
    drop(parts);
    let launched = vmm.wait_until_ready(cancel)?;
    Ok((vmm, launched))
}

/// Descriptors for the VMM, each with its role.
#[derive(Default)]
struct Parts {
    roles: Vec<FdRole>,
    descriptors: Vec<OwnedFd>,
}

impl Parts {
    fn add(&mut self, role: FdRole, descriptor: impl Into<OwnedFd>) -> FdIndex {
        let index = u8::try_from(self.roles.len()).expect("there are about ten descriptors");
        self.roles.push(role);
        self.descriptors.push(descriptor.into());
        FdIndex(index)
    }
}

/// What the guest is told: the image's settings, with the user's above them.
fn guest_config(
    record: &BoxRecord,
    base_fs: &str,
    resolv_conf: Option<String>,
    unix_nanos: u64,
) -> GuestConfig {
    let of_image = record.image_config.env.iter().filter_map(|line| line.split_once('='));
    let of_user = record.spec.env.iter().map(|(name, value)| (name.as_str(), value.as_str()));
    let mut env: Vec<(ByteBuf, ByteBuf)> = Vec::new();
    for (name, value) in of_image.chain(of_user) {
        let name = ByteBuf::from(name.as_bytes());
        env.retain(|(other, _)| *other != name);
        env.push((name, ByteBuf::from(value.as_bytes())));
    }
    let unless_empty = |text: &String| Some(text.clone()).filter(|text| !text.is_empty());
    let workdir =
        record.spec.workdir.clone().or_else(|| unless_empty(&record.image_config.working_dir));
    GuestConfig {
        hostname: record.name.to_string(),
        root: Root::Overlay {
            base_serial: BASE_SERIAL.into(),
            base_fs: base_fs.into(),
            upper_serial: UPPER_SERIAL.into(),
        },
        mounts: Vec::new(),
        env,
        workdir: workdir.map(|path| ByteBuf::from(path.into_bytes())),
        user: record.spec.user.clone().or_else(|| unless_empty(&record.image_config.user)),
        resolv_conf,
        hosts: Vec::new(),
        interfaces: Vec::new(),
        agent: Transport::Vsock,
        unix_nanos,
        cpus: record.spec.cpus,
    }
}

/// Refuses a box that could never have its memory. Less than that is the kernel's to refuse: memory is given page by
/// page, and how much of it the guests will touch is not known.
pub(crate) fn check_memory(wanted_mib: u32) -> Result<()> {
    let info = rustix::system::sysinfo();
    let host_mib = (info.totalram.saturating_mul(u64::from(info.mem_unit))) >> 20;
    if u64::from(wanted_mib) > host_mib {
        return Err(Error::NoMemory { wanted_mib: wanted_mib.into(), host_mib });
    }
    Ok(())
}

fn open_kvm(path: &Path) -> Result<File> {
    File::options().read(true).write(true).open(path).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => Error::KvmMissing(path.into()),
        std::io::ErrorKind::PermissionDenied => Error::KvmDenied(path.into()),
        _ => Error::io(format!("open {}", path.display()))(error),
    })
}

/// The initramfs as a file without a name.
fn initramfs() -> Result<File> {
    let failed = |error| Error::io("make the initramfs")(error);
    let file =
        memfd_create("initramfs", MemfdFlags::CLOEXEC).map_err(|errno| failed(errno.into()))?;
    let mut file = File::from(file);
    file.write_all(INITRAMFS).map_err(failed)?;
    Ok(file)
}

fn open_kernel(home: &Home, record: &BoxRecord) -> Result<File> {
    match &record.spec.kernel {
        Some(path) => {
            let invalid = |source| Error::KernelInvalid { path: path.clone(), source };
            let file = File::open(path).map_err(invalid)?;
            if !file.metadata().map_err(invalid)?.is_file() {
                return Err(invalid(std::io::Error::other("not a file")));
            }
            Ok(file)
        }
        None => {
            let path = home.install.kernel();
            File::open(&path).map_err(|error| match error.kind() {
                std::io::ErrorKind::NotFound => Error::InstallBroken { path },
                _ => Error::KernelInvalid { path, source: error },
            })
        }
    }
}

fn open_rw(path: &Path, create: bool) -> Result<File> {
    File::options()
        .read(true)
        .write(true)
        .create(create)
        .truncate(false)
        .mode(0o600)
        .open(path)
        .map_err(Error::io(format!("open {}", path.display())))
}

fn open_log(path: &Path) -> Result<File> {
    let open = |file: &mut std::fs::OpenOptions| {
        file.read(true)
            .mode(0o600)
            .open(path)
            .map_err(Error::io(format!("open {}", path.display())))
    };
    // Emptied at each start, so that it never grows without end and tells of this start only. Appending, so that the
    // reader's position does not matter to the writer.
    open(File::options().write(true).create(true).truncate(true))?;
    open(File::options().append(true))
}

/// Makes a listening socket in place of one that a dead VMM left.
fn listen(files: &BoxFiles, path: &Path) -> Result<UnixListener> {
    create_private(&files.sockets)?;
    let failed = || Error::io(format!("listen on {}", path.display()));
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(failed()(error)),
        _ => {}
    }
    UnixListener::bind(path).map_err(failed())
}

/// Removes what a box that does not run leaves in the runtime directory.
pub(crate) fn remove_sockets(files: &BoxFiles) -> Result<()> {
    remove_tree(&files.sockets)
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::ImageConfig;
    use crate::{BoxId, spec};

    fn record() -> BoxRecord {
        let options = spec::Options {
            env: vec![("PATH".into(), "/mine".into()), ("A".into(), "b=c".into())],
            ..spec::Options::default()
        };
        BoxRecord {
            id: BoxId::from_random([1; 6]),
            name: "web".parse().unwrap(),
            state: State::Created,
            ephemeral: false,
            spec: spec::resolve(&options).unwrap(),
            image_digest: "d".into(),
            image_file: "/image".into(),
            image_config: ImageConfig {
                env: vec!["PATH=/image".into(), "LANG=C.UTF-8".into(), "malformed".into()],
                working_dir: "/srv".into(),
                user: String::new(),
                ..ImageConfig::default()
            },
            created_at_ms: 0,
            started_at_ms: None,
            boot_micros: None,
        }
    }

    #[test]
    fn the_users_settings_win_over_the_images() {
        let config = guest_config(&record(), "erofs", None, 5);
        let env: Vec<_> = config
            .env
            .iter()
            .map(|(name, value)| (String::from_utf8_lossy(name), String::from_utf8_lossy(value)))
            .collect();
        assert_eq!(
            env,
            [
                ("LANG".into(), "C.UTF-8".into()),
                ("PATH".into(), "/mine".into()),
                ("A".into(), "b=c".into())
            ]
        );
        assert_eq!(config.workdir.as_deref().map(Vec::as_slice), Some(&b"/srv"[..]));
        assert_eq!((config.user, config.hostname.as_str(), config.unix_nanos), (None, "web", 5));
        let mut record = record();
        record.spec.workdir = Some("/w".into());
        record.spec.user = Some("u".into());
        let config = guest_config(&record, "erofs", None, 5);
        assert_eq!(config.workdir.as_deref().map(Vec::as_slice), Some(&b"/w"[..]));
        assert_eq!(config.user.as_deref(), Some("u"));
    }

    #[test]
    fn no_host_has_as_much_memory_as_that() {
        assert!(matches!(check_memory(u32::MAX), Err(Error::NoMemory { .. })));
        assert!(check_memory(1).is_ok());
    }
}
