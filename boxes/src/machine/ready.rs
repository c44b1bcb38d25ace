//! Waits until the machine's agent answers, or QEMU ends.
//!
//! QEMU takes connections for the agent from its first moment on, when nobody inside listens yet; what was sent then
//! may be lost, or answered late. So a new question is asked every now and then while the old ones stay open, and the
//! first answer counts.

use super::link::{Connection, Link};
use crate::{Error, Result};
use proto::agent::{Hello, Op};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

/// Time between two questions.
const INTERVAL: Duration = Duration::from_millis(60);

/// How long one question stays open. The agent answers at once when it is up; this is for a host under heavy load.
const QUESTION_LIFE: Duration = Duration::from_secs(10);

/// How the wait ended.
#[derive(Debug)]
pub(super) enum Outcome {
    /// The agent answered.
    Ready(Hello),
    /// QEMU ended.
    Ended,
    /// Neither happened in time.
    TimedOut,
}

/// Waits for the agent behind `link`, or the end of the process behind `pidfd`.
pub(super) fn wait(link: &Link, pidfd: BorrowedFd<'_>, patience: Duration) -> Result<Outcome> {
    let begin = Instant::now();
    let mut questions: Vec<(Instant, Connection)> = Vec::new();
    let mut next_question = begin;
    while begin.elapsed() < patience {
        let now = Instant::now();
        questions.retain(|(asked, _)| now.duration_since(*asked) < QUESTION_LIFE);
        if now >= next_question {
            next_question = now + INTERVAL;
            // A connection that QEMU refuses says no more than one that is not answered.
            if let Ok(connection) = link.open(Op::Hello, QUESTION_LIFE) {
                questions.push((now, connection));
            }
        }
        let timeout = next_question.saturating_duration_since(Instant::now());
        let timeout = Timespec { tv_sec: 0, tv_nsec: i64::from(timeout.subsec_nanos()) };
        let answered = {
            let mut descriptors = vec![PollFd::from_borrowed_fd(pidfd, PollFlags::IN)];
            descriptors.extend(
                questions
                    .iter()
                    .map(|(_, connection)| PollFd::new(&connection.stream, PollFlags::IN)),
            );
            match poll(&mut descriptors, Some(&timeout)) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return Err(Error::sys("wait for the machine")(errno)),
            }
            let mut ready = descriptors.iter().map(|descriptor| !descriptor.revents().is_empty());
            if ready.next() == Some(true) {
                return Ok(Outcome::Ended);
            }
            ready.position(|is_ready| is_ready)
        };
        if let Some(index) = answered {
            // An end of file: the agent did not listen yet, and the guest's kernel refused.
            let (_, mut connection) = questions.swap_remove(index);
            if let Ok(hello) = connection.hello() {
                return Ok(Outcome::Ready(hello));
            }
        }
    }
    Ok(Outcome::TimedOut)
}

#[cfg(test)]
mod tests {
    use super::super::record::Record;
    use super::*;
    use proto::agent::{Message, Reply};
    use rustix::process::{Pid, PidfdFlags, pidfd_open};
    use std::io::Write;
    use std::net::TcpListener;
    use std::os::fd::AsFd;
    use std::process::Command;
    use std::thread;

    fn link(listener: &TcpListener) -> Link {
        Link::new(&Record {
            fingerprint: String::new(),
            pid: 1,
            port: listener.local_addr().unwrap().port(),
            secret: "s".into(),
            qmp_socket: "/".into(),
            cpus: 1,
            memory_mib: 1,
            ready: None,
        })
    }

    #[test]
    fn questions_that_get_lost_or_refused_do_not_matter() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let link = link(&listener);
        let server = thread::spawn(move || {
            let lost = listener.accept().unwrap();
            drop(listener.accept().unwrap());
            let (mut stream, _) = listener.accept().unwrap();
            let hello = Message::Reply(Reply::Hello(Hello { protocol: 1, ..Hello::default() }));
            stream.write_all(&hello.encode().unwrap()).unwrap();
            drop(lost);
        });
        let this = pidfd_open(rustix::process::getpid(), PidfdFlags::empty()).unwrap();
        let outcome = wait(&link, this.as_fd(), Duration::from_secs(60)).unwrap();
        assert!(matches!(outcome, Outcome::Ready(Hello { protocol: 1, .. })), "{outcome:?}");
        server.join().unwrap();
    }

    #[test]
    fn the_end_of_the_process_and_of_patience_end_the_wait() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let link = link(&listener);
        let mut child = Command::new("true").spawn().unwrap();
        let pid = Pid::from_child(&child);
        let pidfd = pidfd_open(pid, PidfdFlags::empty()).unwrap();
        let outcome = wait(&link, pidfd.as_fd(), Duration::from_secs(60)).unwrap();
        assert!(matches!(outcome, Outcome::Ended));
        child.wait().unwrap();
        let this = pidfd_open(rustix::process::getpid(), PidfdFlags::empty()).unwrap();
        let outcome = wait(&link, this.as_fd(), Duration::from_millis(1)).unwrap();
        assert!(matches!(outcome, Outcome::TimedOut));
    }
}
