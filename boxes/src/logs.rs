//! A box's console log: what is there, and what comes.
//!
//! The VMM appends to one file; when it has grown to its cap, its content moves to a second file and it begins again.

use crate::home::Home;
use crate::lock;
use crate::paths::BoxFiles;
use crate::{Error, Result};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::inotify;
use rustix::io::Errno;
use std::fs::File;
use std::io::{Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::Path;

/// What to show.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Selection {
    /// Only that many lines of what is there.
    pub tail: Option<usize>,
    /// Go on with what comes, until the box stops.
    pub follow: bool,
}

/// Copies a box's console log to `out`. `cancel` becomes readable when the user has seen enough.
///
/// # Errors
/// [`Error::BoxNotFound`]; [`Error::Io`] if the log cannot be read; the error of `out` as [`Error::Io`] with its kind.
pub fn logs(
    home: &Home,
    name: &str,
    selection: Selection,
    cancel: Option<BorrowedFd<'_>>,
    out: &mut dyn Write,
) -> Result<()> {
    let record = home.store.find(name)?;
    let files = home.files(&record);
    let mut follower = Follower { files: &files, position: 0 };
    let watch = selection.follow.then(|| watch(&files.console_log())).transpose()?.flatten();
    let mut bytes = read_whole(&files.console_log_old())?;
    bytes.extend(follower.news()?);
    write(out, last_lines(&bytes, selection.tail))?;
    let Some(watch) = watch else { return Ok(()) };
    let Some(holder) = lock::holder(&files.lock()) else {
        return Ok(());
    };
    loop {
        let mut waiting =
            vec![PollFd::new(&watch, PollFlags::IN), PollFd::new(&holder, PollFlags::IN)];
        waiting.extend(cancel.as_ref().map(|fd| PollFd::new(fd, PollFlags::IN)));
        match poll(&mut waiting, None) {
            Ok(_) => {}
            Err(Errno::INTR) => continue,
            Err(errno) => return Err(Error::sys("wait for the console")(errno)),
        }
        let ended = waiting.iter().skip(1).any(|fd| !fd.revents().is_empty());
        drain(&watch)?;
        write(out, &follower.news()?)?;
        if ended {
            return Ok(());
        }
    }
}

/// The last lines of a console log, without what only a terminal understands.
pub(crate) fn tail(files: &BoxFiles, lines: usize) -> Result<Vec<String>> {
    let bytes = Follower { files, position: 0 }.news()?;
    let text = String::from_utf8_lossy(last_lines(&bytes, Some(lines))).into_owned();
    Ok(text.lines().map(crate::error::printable).collect())
}

/// Where a reader of the log is.
struct Follower<'a> {
    files: &'a BoxFiles,
    position: u64,
}

impl Follower<'_> {
    /// What was written since the last call.
    fn news(&mut self) -> Result<Vec<u8>> {
        let path = self.files.console_log();
        let failed = || Error::io(format!("read {}", path.display()));
        let file = match File::open(&path) {
            // A box that never started has no log.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            result => result.map_err(failed())?,
        };
        let mut news = Vec::new();
        if file.metadata().map_err(failed())?.len() < self.position {
            // It was moved. What this reader has not seen of it is now in the other file.
            let old = read_whole(&self.files.console_log_old())?;
            let seen = usize::try_from(self.position).unwrap_or(usize::MAX);
            news.extend_from_slice(old.get(seen..).unwrap_or_default());
            self.position = 0;
        }
        let mut buffer = vec![0; 64 << 10];
        loop {
            let len = file.read_at(&mut buffer, self.position).map_err(failed())?;
            if len == 0 {
                return Ok(news);
            }
            news.extend_from_slice(&buffer[..len]);
            self.position += u64::try_from(len).unwrap_or_default();
        }
    }
}

/// The last `count` lines.
fn last_lines(bytes: &[u8], count: Option<usize>) -> &[u8] {
    let Some(count) = count else { return bytes };
    if count == 0 {
        return &[];
    }
    let body = bytes.strip_suffix(b"\n").unwrap_or(bytes);
    let line_ends = body.iter().enumerate().rev().filter(|(_, byte)| **byte == b'\n');
    let begin = line_ends.map(|(index, _)| index + 1).nth(count - 1).unwrap_or_default();
    &bytes[begin..]
}

/// A descriptor that becomes readable when the file changes; `None` if there is no such file.
fn watch(path: &Path) -> Result<Option<OwnedFd>> {
    let failed = |errno| Error::sys(format!("watch {}", path.display()))(errno);
    let watch = inotify::init(inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK)
        .map_err(failed)?;
    match inotify::add_watch(&watch, path, inotify::WatchFlags::MODIFY) {
        Ok(_) => Ok(Some(watch)),
        Err(Errno::NOENT) => Ok(None),
        Err(errno) => Err(failed(errno)),
    }
}

fn drain(watch: &OwnedFd) -> Result<()> {
    let mut buffer = [MaybeUninit::uninit(); 4096];
    let mut reader = inotify::Reader::new(watch.as_fd(), &mut buffer);
    loop {
        match reader.next() {
            Ok(_) | Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return Ok(()),
            Err(errno) => return Err(Error::sys("read what changed")(errno)),
        }
    }
}

fn read_whole(path: &Path) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    match File::open(path).and_then(|mut file| file.read_to_end(&mut bytes)) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(Error::io(format!("read {}", path.display()))(error))
        }
        _ => Ok(bytes),
    }
}

fn write(out: &mut dyn Write, bytes: &[u8]) -> Result<()> {
    out.write_all(bytes).and_then(|()| out.flush()).map_err(Error::io("write standard output"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_lines_are_counted_with_and_without_a_final_newline() {
        assert_eq!(last_lines(b"a\nb\nc\n", Some(2)), b"b\nc\n");
        assert_eq!(last_lines(b"a\nb\nc", Some(2)), b"b\nc");
        assert_eq!(last_lines(b"a\nb\n", Some(9)), b"a\nb\n");
        assert_eq!(last_lines(b"a\nb\n", Some(0)), b"");
        assert_eq!(last_lines(b"a\nb\n", None), b"a\nb\n");
        assert_eq!(last_lines(b"", Some(3)), b"");
    }

    #[test]
    fn a_reader_follows_the_log_over_a_rotation() {
        let directory = tempfile::tempdir().unwrap();
        let files =
            BoxFiles { directory: directory.path().into(), sockets: directory.path().into() };
        let mut follower = Follower { files: &files, position: 0 };
        assert_eq!(follower.news().unwrap(), b"");
        std::fs::write(files.console_log(), "one\n").unwrap();
        assert_eq!(follower.news().unwrap(), b"one\n");
        std::fs::write(files.console_log_old(), "one\ntwo\n").unwrap();
        std::fs::write(files.console_log(), "3\n").unwrap();
        assert_eq!(follower.news().unwrap(), b"two\n3\n");
        assert_eq!(follower.news().unwrap(), b"");
    }
}
