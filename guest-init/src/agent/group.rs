//! Signals to an exec: to its process group and, on a terminal, to the group in the foreground.

use super::pty::Terminal;
use crate::syscalls;

/// Greatest signal number (`SIGRTMAX`).
const MAX_SIGNAL: u8 = 64;

/// Whether a client may ask for this signal.
pub fn is_signal(number: u8) -> bool {
    (1..=MAX_SIGNAL).contains(&number)
}

/// Sends a signal that the user meant for what they see: the foreground group of the terminal if there is one, else
/// the exec's group. Those that are to end a session reach both, so that a shell ends with its foreground job.
pub fn forward(leader: i32, terminal: Option<&Terminal>, signal: i32) {
    let foreground = terminal.and_then(Terminal::foreground_group).filter(|group| *group != leader);
    if let Some(foreground) = foreground {
        send(foreground, signal);
    }
    if foreground.is_none() || matches!(signal, libc::SIGHUP | libc::SIGTERM | libc::SIGKILL) {
        send(leader, signal);
    }
}

/// Sends a signal that is to end the exec; stopped processes are continued, so that they hear it.
pub fn end(leader: i32, terminal: Option<&Terminal>, signal: i32) {
    forward(leader, terminal, signal);
    if signal != libc::SIGKILL {
        forward(leader, terminal, libc::SIGCONT);
        send(leader, libc::SIGCONT);
    }
}

/// Whether the group still has members.
pub fn exists(leader: i32) -> bool {
    leader > 1 && syscalls::kill(leader.wrapping_neg(), 0).is_ok()
}

/// An error means that the group is gone, which is what happens when a signal crosses an exit.
fn send(group: i32, signal: i32) {
    // A group of 0 or 1 would be ours, or everybody.
    if group > 1 {
        let _ = syscalls::kill(group.wrapping_neg(), signal);
    }
}

#[cfg(test)]
mod tests {
    use super::is_signal;

    #[test]
    fn numbers_that_are_no_signals_are_known() {
        assert!(is_signal(1) && is_signal(15) && is_signal(64));
        assert!(!is_signal(0) && !is_signal(65) && !is_signal(255));
    }
}
