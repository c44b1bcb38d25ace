//! What a confined process can and cannot do, found out by trying, each time in a process of its own.

#![expect(unsafe_code, reason = "UNSAFETY: forks, and makes system calls that must fail")]

use nix::sys::signal::Signal;
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, fork};
use std::ffi::CStr;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use vmm::sandbox::syscalls::Role;
use vmm::sandbox::{self, Confined};

const ROLES: [Role; 3] = [Role::Main, Role::Vcpu, Role::Io];
const PASSWD: &CStr = c"/etc/passwd";

/// Runs `body` in a child and returns how that ended.
fn in_child(body: impl FnOnce() -> bool) -> WaitStatus {
    // SAFETY: the child is single-threaded, the C library's allocator works in it, and it leaves by `_exit` alone.
    match unsafe { fork() }.unwrap() {
        ForkResult::Parent { child } => waitpid(child, None).unwrap(),
        ForkResult::Child => {
            let code = i32::from(!body());
            // SAFETY: ends the process without running the test harness's destructors.
            unsafe { libc::_exit(code) }
        }
    }
}

fn succeeds(body: impl FnOnce() -> bool) {
    match in_child(body) {
        WaitStatus::Exited(_, 0) => {}
        other => panic!("{other:?}"),
    }
}

fn is_killed(what: &str, body: impl FnOnce()) {
    let status = in_child(|| {
        body();
        true
    });
    match status {
        WaitStatus::Signaled(_, Signal::SIGSYS, _) => {}
        other => panic!("{what}: {other:?}"),
    }
}

fn confined(role: Role) -> Confined {
    let confined = sandbox::enter().unwrap();
    confined.restrict(role)().unwrap();
    confined
}

#[test]
fn a_confined_process_opens_no_file_and_makes_no_connection() {
    succeeds(|| {
        let before = std::fs::read("/etc/passwd").is_ok();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let confined = sandbox::enter().unwrap();
        let layers = confined.layers();
        for layer in ["no_new_privs", "no_capabilities", "not_dumpable", "seccomp"] {
            assert!(layers.iter().any(|found| found == layer), "{layers:?}");
        }
        let files_closed = layers.iter().any(|layer| layer == "landlock" || layer == "empty_root");
        let network_closed = layers.iter().any(|layer| layer == "net_namespace");
        println!("layers on this host: {layers:?}");
        before
            && (!files_closed
                || std::fs::read("/etc/passwd").is_err() && std::fs::write("/tmp/x", "").is_err())
            && (!network_closed || std::net::TcpStream::connect(address).is_err())
    });
}

#[test]
fn forbidden_calls_kill_whatever_the_thread_is() {
    for role in ROLES {
        is_killed("open", || {
            confined(role);
            // SAFETY: a valid path; the call never returns.
            unsafe { libc::open(PASSWD.as_ptr(), libc::O_RDONLY) };
        });
        is_killed("a socket", || {
            confined(role);
            // SAFETY: no memory is passed.
            unsafe { libc::socket(libc::AF_INET, libc::SOCK_STREAM, 0) };
        });
        is_killed("executable memory", || {
            confined(role);
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let protection = libc::PROT_READ | libc::PROT_EXEC;
            // SAFETY: a new mapping touches nothing that exists.
            unsafe { libc::mmap(std::ptr::null_mut(), 4096, protection, flags, -1, 0) };
        });
        is_killed("a signal to another process", || {
            confined(role);
            // SAFETY: no memory is passed; signal 0 does nothing.
            unsafe { libc::syscall(libc::SYS_tgkill, 1, 1, 0) };
        });
        is_killed("a new process", || {
            confined(role);
            // SAFETY: the call never returns.
            unsafe { libc::fork() };
        });
        is_killed("another request to KVM", || {
            confined(role);
            const KVM_CREATE_VM: libc::c_ulong = 0xae01;
            // SAFETY: no memory is passed.
            unsafe { libc::ioctl(0, KVM_CREATE_VM, 0) };
        });
    }
}

#[test]
fn what_threads_need_still_works() {
    for role in ROLES {
        succeeds(|| {
            let (mut ours, mut theirs) = UnixStream::pair().unwrap();
            let event = vmm_sys_util::eventfd::EventFd::new(0).unwrap();
            confined(role);
            // Small and large blocks: the heap and mappings of their own.
            let blocks: Vec<Vec<u8>> = (0..24).map(|bits| vec![1; 1 << bits]).collect();
            drop(blocks);
            event.write(1).unwrap();
            if role != Role::Vcpu {
                ours.write_all(b"x").unwrap();
                theirs.read_exact(&mut [0]).unwrap();
            }
            vmm_sys_util::eventfd::EventFd::new(libc::EFD_NONBLOCK).unwrap().try_clone().unwrap();
            std::collections::HashMap::<u8, u8>::new().insert(1, 1);
            event.read().unwrap() == 1
        });
    }
}

#[test]
fn a_panic_ends_the_process_by_abort_not_by_a_forbidden_call() {
    for role in ROLES {
        let status = in_child(|| {
            confined(role);
            std::process::abort();
        });
        assert!(
            matches!(status, WaitStatus::Signaled(_, Signal::SIGABRT, _)),
            "{role:?}: {status:?}"
        );
    }
}
