//! Finds the machine, or starts it.

use super::decide::{Found, Step, decide};
use super::link::Link;
use super::record::{Ready, Record, fingerprint, replace};
use super::{
    Machine, MachineError, TAIL_LINES, config, detach, log, qemu, qmp::Qmp, ready, status, stop,
    tsc,
};
use crate::lock::{self, Gate, Lock};
use crate::paths::create_private;
use crate::{Error, Result, empty_disk};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixListener;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// How long the machine may take to come up: 2 s on a quick host, and a hundred times as long on a crowded one is
/// still better than an error.
const START_PATIENCE: Duration = Duration::from_secs(200);

/// Time that processes inside have to end when an outdated machine is replaced.
const RESTART_GRACE: Duration = Duration::from_secs(5);

/// The machine's clock is set again when it was last set longer ago than this.
const CLOCK_LIFE: Duration = Duration::from_secs(60);

/// How long a machine that broke a connection off may take to end: it may be writing out its file systems.
const DYING_PATIENCE: Duration = Duration::from_secs(30);

/// How long a QEMU that failed to start may take to be gone.
const EXIT_PATIENCE: Duration = Duration::from_secs(1);

/// What happens while the machine is looked for, for the user to know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// It is started, which takes some seconds.
    Starting,
    /// It runs another kernel or agent than this release's, and nothing else: it is started anew.
    Restarting,
    /// It runs another kernel or agent than this release's, and boxes: it is used as it is.
    Outdated,
}

/// Finds the running machine, or starts one, and makes sure that it answers. `tell` hears what happens.
///
/// # Errors
/// [`MachineError`] if there is none and none can be started.
pub fn ensure(machine: &Machine, tell: &mut dyn FnMut(Event)) -> Result<Record> {
    let wanted = fingerprint(&machine.install, machine.initramfs_sha256)?;
    let files = &machine.files;
    let (mut turn, mut boxes, mut told) = (None, None, false);
    loop {
        let (found, record) = look(machine, &wanted)?;
        let record = match (decide(found, turn.is_some(), boxes), record) {
            (Step::Use, Some(record)) => record,
            (Step::UseOutdated, Some(record)) => {
                tell(Event::Outdated);
                record
            }
            (Step::TakeTurn, _) => {
                turn = Some(Gate::exclusive(&files.turn)?);
                continue;
            }
            (Step::AskForBoxes, Some(record)) => {
                // A machine that does not say is treated as one that has boxes: they might be there.
                boxes = Some(status::boxes_running(machine, &record).is_none_or(|count| count > 0));
                continue;
            }
            (Step::Restart, _) => {
                told = true;
                tell(Event::Restarting);
                stop::end(machine, RESTART_GRACE)?;
                continue;
            }
            (Step::Replace, _) => {
                stop::kill(machine)?;
                continue;
            }
            (Step::Start, _) => {
                if !told {
                    tell(Event::Starting);
                }
                return start(machine, wanted);
            }
            (Step::Use | Step::UseOutdated | Step::AskForBoxes, None) => {
                unreachable!("a machine that can be used has a record")
            }
        };
        match greet(machine, &record) {
            Ok(()) => return Ok(record),
            Err(error) if !broke_off(&error) => return Err(error),
            Err(error) => {
                // Whoever stops it has the turn. With the turn ours, it is dying: killed, or powered off from inside.
                if turn.is_none() {
                    turn = Some(Gate::exclusive(&files.turn)?);
                }
                let is_same = running(machine)?.is_some_and(|now| now == record);
                if is_same && !stop::wait(machine, DYING_PATIENCE)? {
                    return Err(error);
                }
            }
        }
    }
}

/// Tells whether the machine broke a connection off instead of answering. A process that is killed closes its sockets
/// some time before it gives up its locks: it has a lot of memory to return.
fn broke_off(error: &Error) -> bool {
    use io::ErrorKind::{
        BrokenPipe, ConnectionAborted, ConnectionRefused, ConnectionReset, UnexpectedEof,
    };
    let Error::Machine(MachineError::Link { source, .. }) = error else { return false };
    let kinds = [BrokenPipe, ConnectionAborted, ConnectionRefused, ConnectionReset, UnexpectedEof];
    kinds.contains(&source.kind())
}

/// Looks at the machine. The record is there if it runs and has come up.
pub(super) fn look(machine: &Machine, wanted: &str) -> Result<(Found, Option<Record>)> {
    let Some(record) = running(machine)? else {
        let held = is_held(machine)?;
        return Ok((if held { Found::Starting } else { Found::Stopped }, None));
    };
    let found = if record.fingerprint == wanted { Found::Current } else { Found::Outdated };
    Ok((found, Some(record)))
}

/// The record of a machine that runs and has come up.
pub(super) fn running(machine: &Machine) -> Result<Option<Record>> {
    if !is_held(machine)? {
        return Ok(None);
    }
    Ok(Record::read(&machine.files)?.filter(|record| record.ready.is_some()))
}

/// Tells whether QEMU runs.
pub(super) fn is_held(machine: &Machine) -> Result<bool> {
    // Without a state directory there is no gate, and nothing that could run.
    if !machine.files.directory.exists() {
        return Ok(false);
    }
    Gate::shared(&machine.files.gate)?.is_held(&machine.files.lock())
}

/// Makes sure that a machine that runs answers, and does what has to be done from time to time.
fn greet(machine: &Machine, record: &Record) -> Result<()> {
    let link = Link::new(record);
    let path = machine.files.record();
    let age =
        path.metadata().and_then(|metadata| metadata.modified()).map(|modified| modified.elapsed());
    if matches!(age, Ok(Ok(age)) if age < CLOCK_LIFE) {
        return link.hello().map(drop);
    }
    link.set_time()?;
    let touched = File::options()
        .write(true)
        .open(&path)
        .and_then(|file| file.set_modified(SystemTime::now()))
        .and_then(|()| log::cut(&machine.files.console()))
        .and_then(|()| log::cut(&machine.files.qemu_log()));
    if let Err(error) = touched {
        ::log::warn!("cannot tend to the machine's files: {error}");
    }
    Ok(())
}

/// Starts the machine. The caller has its turn, and nobody holds the lock.
fn start(machine: &Machine, fingerprint: String) -> Result<Record> {
    let begin = Instant::now();
    let files = &machine.files;
    Record::remove(files)?;
    create_private(&files.directory)?;
    if !files.disk().exists() {
        make_disk(machine)?;
    }
    let secret = crate::random::hex::<32>()?;
    let unix_nanos = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
    let unix_nanos = u64::try_from(unix_nanos).unwrap_or(u64::MAX);
    let config = config::guest_config(&machine.settings, secret.as_bytes(), unix_nanos);
    replace(files.initramfs(), &config::initramfs(machine.initramfs, &config))?;

    let mut startup = Startup::spawn(machine)?;
    let mut record = Record {
        fingerprint,
        pid: startup.child.id(),
        port: 0,
        secret,
        qmp_socket: files.qmp_socket.clone(),
        cpus: machine.settings.cpus,
        memory_mib: machine.settings.memory_mib,
        ready: None,
    };
    match startup.bring_up(machine, &mut record, begin) {
        Ok(()) => {
            startup.succeeded = true;
            Ok(record)
        }
        Err(error) => Err(startup.explain(machine, error)),
    }
}

/// Makes the machine's own disk. It appears under its name only when it is whole.
fn make_disk(machine: &Machine) -> Result<()> {
    let path = machine.files.disk();
    let new = path.with_extension("new");
    let make = || {
        let file = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&new)?;
        empty_disk::write_empty_disk(&file, machine.settings.disk_mib << 20)?;
        std::fs::rename(&new, &path)
    };
    make().map_err(Error::io(format!("make {}", path.display())))
}

/// QEMU on its way up; killed when dropped before it has succeeded.
struct Startup {
    child: Child,
    pidfd: OwnedFd,
    succeeded: bool,
}

impl Startup {
    /// Starts QEMU with the machine's lock.
    fn spawn(machine: &Machine) -> Result<Self> {
        let files = &machine.files;
        let kernel = std::path::absolute(machine.install.kernel())
            .map_err(Error::io("find out where the kernel lies"))?;
        let tsc_khz = tsc::frequency_khz()?;
        let lock = take_lock(machine)?;
        let lock_too =
            OwnedFd::from(lock.file().try_clone().map_err(Error::io("duplicate a descriptor"))?);
        // We listen, QEMU answers: so there is no moment at which the socket is not there yet.
        let _ = std::fs::remove_file(&files.qmp_socket);
        let listener = UnixListener::bind(&files.qmp_socket)
            .map_err(Error::io(format!("listen on {}", files.qmp_socket.display())))?;
        let listener = OwnedFd::from(listener);
        drop(log::create(&files.console())?);
        let log = log::create(&files.qemu_log())?;
        let log_too = log.try_clone().map_err(Error::io("duplicate a descriptor"))?;

        let mut command = Command::new(&machine.qemu);
        command
            .args(qemu::arguments(
                &kernel,
                &machine.settings,
                tsc_khz,
                detach::number(listener.as_fd()),
            ))
            .current_dir(&files.directory)
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(log_too);
        let mut child = detach::spawn(command, vec![lock_too, listener])
            .map_err(|error| not_run(machine, error))?;
        let pid = Pid::from_child(&child);
        let watched = pidfd_open(pid, PidfdFlags::empty()).map_err(Error::sys("watch QEMU"));
        match watched.and_then(|pidfd| lock.hand_over(pid).map(|()| pidfd)) {
            Ok(pidfd) => Ok(Self { child, pidfd, succeeded: false }),
            Err(error) => {
                let _ = child.kill();
                let _ = child.wait();
                Err(error)
            }
        }
    }

    /// Asks QEMU for the port it chose, and waits for the agent behind it.
    fn bring_up(&mut self, machine: &Machine, record: &mut Record, begin: Instant) -> Result<()> {
        let table = Qmp::connect(&record.qmp_socket)?.monitor("info usernet")?;
        record.port =
            qemu::forwarded_port(&table).ok_or_else(|| failure("QEMU did not open a port"))?;
        match ready::wait(&Link::new(record), self.pidfd.as_fd(), START_PATIENCE)? {
            ready::Outcome::Ready(hello) => {
                let start_ms = u64::try_from(begin.elapsed().as_millis()).unwrap_or(u64::MAX);
                record.ready = Some(Ready { start_ms, kernel: hello.kernel });
                record.write(&machine.files)
            }
            ready::Outcome::Ended => Err(failure("it ended before its agent answered")),
            ready::Outcome::TimedOut => {
                Err(failure(&format!("no answer within {} s", START_PATIENCE.as_secs())))
            }
        }
    }

    /// An error with what QEMU or the machine's console said last.
    fn explain(&mut self, machine: &Machine, error: Error) -> Error {
        let mut cause = match &error {
            Error::Machine(MachineError::Start { cause, .. }) => cause.clone(),
            Error::Machine(MachineError::Qmp { .. }) => "QEMU does not answer".into(),
            _ => return error,
        };
        // A process closes its sockets a moment before it is gone; one that hangs is not waited for.
        let has_ended = lock::wait_for_exit(&self.pidfd, EXIT_PATIENCE).unwrap_or(false);
        if let (true, Ok(Some(status))) = (has_ended, self.child.try_wait())
            && !status.success()
        {
            cause = format!("QEMU ended with {status}");
        }
        let mut tail = log::tail(&machine.files.console(), TAIL_LINES);
        if tail.is_empty() {
            // Before the console is there, QEMU itself is the one to ask; its remarks on CPU features say nothing.
            tail = log::tail(&machine.files.qemu_log(), TAIL_LINES);
            tail.retain(|line| !line.contains("TCG doesn't support requested feature"));
        }
        MachineError::Start { cause, tail }.into()
    }
}

impl Drop for Startup {
    fn drop(&mut self) {
        if self.succeeded {
            return;
        }
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn not_run(machine: &Machine, error: io::Error) -> Error {
    let program = machine.qemu.display();
    match error.kind() {
        io::ErrorKind::NotFound => {
            MachineError::QemuMissing { program: program.to_string() }.into()
        }
        _ => Error::io(format!("start {program}"))(error),
    }
}

fn failure(cause: &str) -> Error {
    MachineError::Start { cause: cause.into(), tail: Vec::new() }.into()
}

/// Takes the machine's lock. We have our turn, so whoever holds it now is a QEMU in its last moments.
fn take_lock(machine: &Machine) -> Result<Lock> {
    let files = &machine.files;
    if let Some(lock) = Gate::exclusive(&files.gate)?.take(&files.lock())? {
        return Ok(lock);
    }
    stop::kill(machine)?;
    Gate::exclusive(&files.gate)?.take(&files.lock())?.ok_or_else(|| MachineError::Stuck.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Code;
    use crate::install::Install;
    use crate::machine::{MachineFiles, Settings};
    use crate::paths::{Dirs, Environment};
    use rustix::fs::{FlockOperation, flock};
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;

    /// A machine whose QEMU is this shell script.
    fn machine(root: &Path, script: &str) -> Machine {
        let environment = Environment { lilbox_home: Some(root.into()), ..Environment::default() };
        let dirs = Dirs::compute(&environment).unwrap();
        dirs.create().unwrap();
        let install = Install { vmm: root.join("vmm"), share: root.into(), kvm: root.join("kvm") };
        std::fs::write(install.kernel(), "kernel").unwrap();
        let qemu = root.join("qemu");
        std::fs::write(&qemu, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&qemu, PermissionsExt::from_mode(0o755)).unwrap();
        Machine {
            files: MachineFiles::new(&dirs),
            install,
            settings: Settings { cpus: 1, memory_mib: 512, disk_mib: 1024 },
            program: "/bin/lilbox".into(),
            qemu,
            initramfs: b"",
            initramfs_sha256: "",
        }
    }

    fn ensure_fails(machine: &Machine) -> (Error, Vec<Event>) {
        let mut events = Vec::new();
        let error = ensure(machine, &mut |event| events.push(event)).unwrap_err();
        (error, events)
    }

    #[test]
    fn a_qemu_that_ends_at_once_shows_what_it_said() {
        let root = tempfile::tempdir().unwrap();
        let machine = machine(root.path(), "echo no such CPU >&2; exit 1");
        let (error, events) = ensure_fails(&machine);
        let text = error.to_string();
        assert!(text.contains("no such CPU") && text.contains("exit status: 1"), "{text}");
        assert_eq!((error.code(), events), (Code::MachineFailed, vec![Event::Starting]));
        assert!(!is_held(&machine).unwrap());
        assert!(machine.files.disk().metadata().unwrap().len() == 1 << 30);
    }

    #[test]
    fn a_missing_qemu_is_told_with_the_packages_that_have_it() {
        let root = tempfile::tempdir().unwrap();
        let mut machine = machine(root.path(), "");
        machine.qemu = root.path().join("nowhere");
        let (error, _) = ensure_fails(&machine);
        assert_eq!(error.code(), Code::ProgramMissing);
        assert!(error.hint().unwrap().contains("apt-get install qemu-system-x86"));
    }

    #[test]
    fn a_start_that_was_cut_short_is_replaced() {
        let root = tempfile::tempdir().unwrap();
        let machine = machine(root.path(), "exit 1");
        create_private(&machine.files.directory).unwrap();
        // What a killed command leaves: a QEMU that has the lock, and no record.
        let lock = take_lock(&machine).unwrap();
        let mut orphan = Command::new("sleep")
            .arg("1000")
            .stdin(lock.file().try_clone().unwrap())
            .spawn()
            .unwrap();
        drop(lock);
        assert_eq!(look(&machine, "f").unwrap(), (Found::Starting, None));
        let (_, events) = ensure_fails(&machine);
        assert_eq!(events, [Event::Starting]);
        assert!(!orphan.wait().unwrap().success(), "it was killed");
    }

    #[test]
    fn a_machine_that_was_just_killed_is_waited_for_and_replaced() {
        let root = tempfile::tempdir().unwrap();
        let machine = machine(root.path(), "exit 1");
        create_private(&machine.files.directory).unwrap();
        // A process that still has the lock, though its sockets are closed already.
        let lock = take_lock(&machine).unwrap();
        let mut dying = Command::new("cat")
            .stdin(Stdio::piped())
            .stdout(lock.file().try_clone().unwrap())
            .spawn()
            .unwrap();
        lock.hand_over(Pid::from_child(&dying)).unwrap();
        drop(lock);
        let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let record = Record {
            fingerprint: fingerprint(&machine.install, machine.initramfs_sha256).unwrap(),
            pid: dying.id(),
            port: closed.port(),
            secret: "s".into(),
            qmp_socket: machine.files.qmp_socket.clone(),
            cpus: 1,
            memory_mib: 512,
            ready: Some(Ready { start_ms: 1, kernel: "6.12".into() }),
        };
        record.write(&machine.files).unwrap();
        assert_eq!(look(&machine, &record.fingerprint).unwrap().0, Found::Current);
        drop(Gate::exclusive(&machine.files.turn).unwrap());
        let turn = || File::open(&machine.files.turn).unwrap();
        let events = std::thread::scope(|scope| {
            let command = scope.spawn(|| ensure_fails(&machine).1);
            // Once the command has its turn, nothing is left to it but to wait for the lock.
            while flock(turn(), FlockOperation::NonBlockingLockShared).is_ok() {
                assert!(!command.is_finished(), "it did not wait");
                std::thread::yield_now();
            }
            drop(dying.stdin.take());
            command.join().unwrap()
        });
        assert_eq!(events, [Event::Starting]);
        assert!(dying.wait().unwrap().success(), "it ended by itself");
    }

    #[test]
    fn nothing_runs_before_the_first_start_and_stopping_it_is_fine() {
        let root = tempfile::tempdir().unwrap();
        let machine = machine(root.path(), "");
        assert_eq!(look(&machine, "f").unwrap(), (Found::Stopped, None));
        assert!(!stop(&machine, Duration::ZERO).unwrap());
        stop::remove(&machine, Duration::ZERO).unwrap();
        let status = status(&machine).unwrap();
        assert_eq!((status.status, status.exists), ("stopped", false));
    }
}
