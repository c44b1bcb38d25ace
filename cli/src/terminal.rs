//! The user's terminal: its size, and raw mode that ends however this process ends.

use crate::error::{CliError, Result};
use proto::agent::TtySize;
use rustix::process::getpgrp;
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetpgrp, tcgetwinsize, tcsetattr};
use std::io::IsTerminal;
use std::sync::{Mutex, Once, PoisonError};

/// The terminal's modes before raw mode, for the panic hook: a panic must not leave the user with a terminal that does
/// not echo. Held only for an assignment or a copy.
static SAVED: Mutex<Option<Termios>> = Mutex::new(None);

/// Whether standard input is a terminal.
pub fn stdin_is_terminal() -> bool {
    std::io::stdin().is_terminal()
}

/// Whether standard output is a terminal.
pub fn stdout_is_terminal() -> bool {
    std::io::stdout().is_terminal()
}

/// Whether standard error is a terminal.
pub fn stderr_is_terminal() -> bool {
    std::io::stderr().is_terminal()
}

/// Whether the terminal on standard input is this process's to use: changing its modes or reading it stops a job in the
/// background. One that is not the controlling terminal is nobody's, and so free.
pub fn in_foreground() -> bool {
    tcgetpgrp(std::io::stdin()).map_or(true, |foreground| foreground == getpgrp())
}

/// The size of the terminal on standard input or output.
pub fn size() -> Option<TtySize> {
    let size = tcgetwinsize(std::io::stdout()).or_else(|_| tcgetwinsize(std::io::stdin())).ok()?;
    Some(TtySize { rows: size.ws_row, cols: size.ws_col })
}

/// Raw mode of the terminal on standard input, until dropped.
pub struct Raw {
    saved: Termios,
}

impl Raw {
    /// Begins raw mode.
    pub fn begin() -> Result<Self> {
        static HOOK: Once = Once::new();
        let failed =
            |errno: rustix::io::Errno| CliError::io("set the terminal to raw mode")(errno.into());
        let saved = tcgetattr(std::io::stdin()).map_err(failed)?;
        HOOK.call_once(|| {
            let next = std::panic::take_hook();
            std::panic::set_hook(Box::new(move |info| {
                // Not waited for: the panic may have come while it was held.
                if let Ok(mut saved) = SAVED.try_lock()
                    && let Some(saved) = saved.take()
                {
                    let _ = tcsetattr(std::io::stdin(), OptionalActions::Now, &saved);
                }
                next(info);
            }));
        });
        *SAVED.lock().unwrap_or_else(PoisonError::into_inner) = Some(saved.clone());
        let raw = Self { saved };
        raw.apply().map_err(failed)?;
        Ok(raw)
    }

    /// Sets raw mode again: a shell that stopped and continued this process has set its own.
    pub fn renew(&self) {
        // A terminal that is gone needs no mode.
        let _ = self.apply();
    }

    fn apply(&self) -> std::result::Result<(), rustix::io::Errno> {
        let mut modes = self.saved.clone();
        modes.make_raw();
        tcsetattr(std::io::stdin(), OptionalActions::Now, &modes)
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        *SAVED.lock().unwrap_or_else(PoisonError::into_inner) = None;
        // Likewise.
        let _ = tcsetattr(std::io::stdin(), OptionalActions::Drain, &self.saved);
    }
}
