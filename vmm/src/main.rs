//! `lilbox-vmm`: receive → confine → build → run.
//!
//! Started by whoever wants a box, with the launch channel as standard input and the log as standard error; owned by
//! nobody afterwards. It takes no arguments.

use proto::code::Code;
use proto::launch::LaunchFailure;
use rustix::fs::{Mode, OFlags};
use std::io;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use vmm::control::decide::Terms;
use vmm::control::server::Server;
use vmm::control::signals::Signals;
use vmm::control::supervisor::{Facts, Supervisor};
use vmm::launch::{Channel, chain};
use vmm::machine::{Built, Machine};
use vmm::sandbox;

fn main() -> ExitCode {
    let started = Instant::now();
    vmm::stderr_log::start(log::LevelFilter::Info);
    let (channel, signals) = match detach() {
        Ok(parts) => parts,
        Err(error) => {
            log::error!("cannot detach from the parent: {error}");
            return ExitCode::FAILURE;
        }
    };
    match serve(started, channel, signals) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err((channel, failure)) => {
            channel.fail(failure);
            ExitCode::FAILURE
        }
    }
}

/// Becomes a process of its own: no descriptor of the parent's but the three it meant, a session of its own, signals as
/// a descriptor.
fn detach() -> io::Result<(Channel, Signals)> {
    vmm::launch::close_inherited()?;
    limit_arenas();
    let signals = Signals::take()?;
    // Fails for the leader of a process group, such as a job of a shell; then it has its own group at least.
    if let Err(error) = rustix::process::setsid() {
        log::debug!("no session of its own: {error}");
    }
    let channel = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3)?;
    let null = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    // Otherwise the parent would never see the channel end.
    rustix::stdio::dup2_stdin(&null)?;
    Ok((Channel::new(channel), signals))
}

/// One heap for all threads: they allocate little, and each heap of its own would cost memory and system calls at start.
fn limit_arenas() {
    #[cfg(target_env = "gnu")]
    {
        #[expect(unsafe_code, reason = "UNSAFETY: a switch of the C library")]
        // SAFETY: no memory is passed; called before there is a second thread.
        let accepted = unsafe { libc::mallopt(libc::M_ARENA_MAX, 1) };
        if accepted == 0 {
            log::debug!("the allocator keeps its arenas");
        }
    }
}

fn serve(
    started: Instant,
    channel: Channel,
    signals: Signals,
) -> Result<bool, (Channel, LaunchFailure)> {
    let failure = |code, error: &dyn std::error::Error| LaunchFailure {
        code,
        message: chain(error),
        console_tail: Vec::new(),
        last_exit: None,
    };
    let (request, descriptors) = match channel.receive() {
        Ok(received) => received,
        Err(error) => return Err((channel, failure(error.code(), &error))),
    };
    let confined = match sandbox::enter() {
        Ok(confined) => confined,
        Err(error) => return Err((channel, failure(Code::Internal, &error))),
    };
    let Built { machine, control_listener } = match Machine::build(&confined, &request, descriptors)
    {
        Ok(built) => built,
        Err(error) => return Err((channel, failure(error.code(), &error))),
    };
    let server = match Server::new(control_listener) {
        Ok(server) => server,
        Err(error) => return Err((channel, failure(Code::Io, &error))),
    };
    let facts = Facts {
        cpus: request.machine.cpus,
        memory_mib: request.machine.memory_mib,
        isolation: confined.layers().to_vec(),
        started,
        build_micros: u64::try_from(started.elapsed().as_micros()).unwrap_or(u64::MAX),
    };
    let terms = Terms {
        stop_grace: Duration::from_millis(request.stop_grace_ms),
        tied_to_parent: request.tied_to_parent,
    };
    let boot_timeout = Duration::from_millis(request.boot_timeout_ms);
    Ok(Supervisor::new(machine, channel, server, signals, facts, terms, boot_timeout).run())
}
