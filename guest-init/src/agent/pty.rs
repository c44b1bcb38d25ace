//! Pseudo-terminals.

use proto::agent::TtySize;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::OFlags;
use rustix::pty::OpenptFlags;
use rustix::termios::{InputModes, LocalModes, OptionalActions, SpecialCodeIndex, Winsize};
use std::io;
use std::sync::Arc;

/// The side of a terminal that shows and types.
#[derive(Debug, Clone)]
pub struct Terminal {
    master: Arc<OwnedFd>,
}

impl Terminal {
    /// Opens a terminal of this size, owned by this user; returns the program's side too.
    ///
    /// # Errors
    /// If there are no terminals or descriptors left.
    pub fn open(size: TtySize, uid: u32) -> io::Result<(Self, OwnedFd)> {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let master = rustix::pty::openpt(flags)?;
        rustix::pty::unlockpt(&master)?;
        let slave = rustix::pty::ioctl_tiocgptpeer(&master, flags)?;
        rustix::fs::fcntl_setfl(&master, OFlags::RDWR | OFlags::NONBLOCK)?;
        let mut modes = rustix::termios::tcgetattr(&slave)?;
        modes.input_modes |= InputModes::IUTF8;
        rustix::termios::tcsetattr(&slave, OptionalActions::Now, &modes)?;
        rustix::fs::fchown(&slave, Some(rustix::fs::Uid::from_raw(uid)), None)?;
        let terminal = Self { master: Arc::new(master) };
        terminal.resize(size)?;
        Ok((terminal, slave))
    }

    /// Our side.
    pub fn master(&self) -> &Arc<OwnedFd> {
        &self.master
    }

    /// Gives it another size, of which the foreground group is told.
    ///
    /// # Errors
    /// As the ioctl.
    pub fn resize(&self, size: TtySize) -> io::Result<()> {
        let winsize = Winsize { ws_row: size.rows, ws_col: size.cols, ws_xpixel: 0, ws_ypixel: 0 };
        Ok(rustix::termios::tcsetwinsize(&self.master, winsize)?)
    }

    /// The process group in the foreground, if there is one.
    pub fn foreground_group(&self) -> Option<i32> {
        rustix::termios::tcgetpgrp(&self.master).ok().map(|group| group.as_raw_nonzero().get())
    }

    /// The character that ends input, if the program reads by lines now.
    pub fn end_of_input(fd: BorrowedFd<'_>) -> Option<u8> {
        let modes = rustix::termios::tcgetattr(fd).ok()?;
        modes
            .local_modes
            .contains(LocalModes::ICANON)
            .then(|| modes.special_codes[SpecialCodeIndex::VEOF])
    }
}

impl AsFd for Terminal {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.master.as_fd()
    }
}
