//! Where the guest's console goes: a file with a cap, its predecessor, and the last lines in memory.
//!
//! # Trust
//! The guest decides what is written and how much. The two files together never hold more than twice the cap. Bytes
//! are kept as they are in the files; [`ConsoleLog::tail`], which ends up on a terminal, makes control characters
//! visible instead.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What is kept in memory for error reports.
const TAIL_BYTES: usize = 16 << 10;

/// The unit in which a full file is moved.
const COPY_BYTES: usize = 16 << 10;

/// A capped log. Clones write to the same log.
#[derive(Clone, Debug)]
pub struct ConsoleLog {
    /// Held for the length of a write; nothing else is locked meanwhile.
    inner: Arc<Mutex<Inner>>,
}

#[derive(Debug)]
struct Inner {
    current: File,
    old: File,
    cap_bytes: u64,
    len: u64,
    tail: VecDeque<u8>,
    /// The first failure was reported.
    failing: bool,
}

impl ConsoleLog {
    /// A log that goes on at the end of `current`. Both files are open for reading and writing. When `current` reaches
    /// `cap_bytes`, its content replaces that of `old`.
    ///
    /// # Errors
    /// If the length of `current` cannot be found.
    pub fn new(current: File, old: File, cap_bytes: u64) -> io::Result<Self> {
        let len = current.metadata()?.len();
        let inner = Inner {
            current,
            old,
            cap_bytes: cap_bytes.max(1),
            len,
            tail: VecDeque::new(),
            failing: false,
        };
        Ok(Self { inner: Arc::new(Mutex::new(inner)) })
    }

    /// Appends bytes. Never fails: what cannot be stored is lost, since a full disk must not stop the guest.
    pub fn append(&self, bytes: &[u8]) {
        self.lock().append(bytes);
    }

    /// The last `max_lines` lines, or fewer, without control characters.
    #[must_use]
    pub fn tail(&self, max_lines: usize) -> Vec<String> {
        let bytes: Vec<u8> = self.lock().tail.iter().copied().collect();
        let bytes = bytes.strip_suffix(b"\n").unwrap_or(&bytes);
        if bytes.is_empty() {
            return Vec::new();
        }
        let lines: Vec<&[u8]> = bytes.split(|byte| *byte == b'\n').collect();
        lines
            .iter()
            .skip(lines.len().saturating_sub(max_lines))
            .map(|line| printable(line))
            .collect()
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // A writer that panicked leaves at worst a wrong `len`: a gap or an overwritten line.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl io::Write for ConsoleLog {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.append(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Inner {
    fn append(&mut self, bytes: &[u8]) {
        self.remember(bytes);
        if let Err(error) = self.store(bytes) {
            if !self.failing {
                log::warn!("console output is lost: {error}");
            }
            self.failing = true;
        } else {
            self.failing = false;
        }
    }

    fn remember(&mut self, bytes: &[u8]) {
        let bytes = bytes.get(bytes.len().saturating_sub(TAIL_BYTES)..).unwrap_or(bytes);
        let excess = (self.tail.len() + bytes.len()).saturating_sub(TAIL_BYTES);
        self.tail.drain(..excess);
        self.tail.extend(bytes);
    }

    fn store(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            if self.len >= self.cap_bytes {
                self.rotate()?;
            }
            let room = usize::try_from(self.cap_bytes - self.len).unwrap_or(usize::MAX);
            let (head, rest) = bytes.split_at(bytes.len().min(room));
            self.current.write_all_at(head, self.len)?;
            self.len += head.len() as u64;
            bytes = rest;
        }
        Ok(())
    }

    /// Moves the content of `current` to `old`. The descriptors stay the same: a confined process cannot rename.
    fn rotate(&mut self) -> io::Result<()> {
        let copied = self.copy_to_old();
        // Even if it could not be kept: what comes now is worth more than what was before.
        self.current.set_len(0)?;
        self.len = 0;
        copied
    }

    fn copy_to_old(&self) -> io::Result<()> {
        self.old.set_len(0)?;
        // Longer than the cap only if an earlier run had a larger one; its end is what matters.
        let mut from = self.len.saturating_sub(self.cap_bytes);
        let mut to = 0;
        let mut buffer = [0; COPY_BYTES];
        while from < self.len {
            let count = match self.current.read_at(&mut buffer, from) {
                // Somebody has cut the file.
                Ok(0) => break,
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            self.old.write_all_at(&buffer[..count], to)?;
            from += count as u64;
            to += count as u64;
        }
        Ok(())
    }
}

/// One line as text that cannot do anything to a terminal.
fn printable(line: &[u8]) -> String {
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    let mut text = String::with_capacity(line.len());
    for character in String::from_utf8_lossy(line).chars() {
        if character.is_control() && character != '\t' {
            // Writing to a string cannot fail.
            let _written = write!(text, "{}", character.escape_default());
        } else {
            text.push(character);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Files {
        _folder: tempfile::TempDir,
        current: std::path::PathBuf,
        old: std::path::PathBuf,
    }

    fn files() -> Files {
        let folder = tempfile::tempdir().unwrap();
        Files {
            current: folder.path().join("current"),
            old: folder.path().join("old"),
            _folder: folder,
        }
    }

    impl Files {
        fn log(&self, cap_bytes: u64) -> ConsoleLog {
            let open = |path| {
                File::options()
                    .read(true)
                    .write(true)
                    .create(true)
                    .truncate(false)
                    .open(path)
                    .unwrap()
            };
            ConsoleLog::new(open(&self.current), open(&self.old), cap_bytes).unwrap()
        }

        fn contents(&self) -> (Vec<u8>, Vec<u8>) {
            (std::fs::read(&self.old).unwrap(), std::fs::read(&self.current).unwrap())
        }
    }

    #[test]
    fn what_is_written_is_in_the_file_as_it_was() {
        let files = files();
        let log = files.log(100);
        log.append(b"one\x1b[31m\n");
        log.append(b"\xfftwo");
        assert_eq!(files.contents(), (vec![], b"one\x1b[31m\n\xfftwo".to_vec()));
    }

    #[test]
    fn a_full_file_becomes_the_old_one() {
        let files = files();
        let log = files.log(8);
        log.append(b"0123456789");
        assert_eq!(files.contents(), (b"01234567".to_vec(), b"89".to_vec()));
        log.append(b"abcdef");
        assert_eq!(
            files.contents(),
            (b"01234567".to_vec(), b"89abcdef".to_vec()),
            "full is not yet over"
        );
        log.append(b"g");
        assert_eq!(files.contents(), (b"89abcdef".to_vec(), b"g".to_vec()));
    }

    #[test]
    fn a_flood_stays_within_twice_the_cap() {
        let files = files();
        let log = files.log(40_000);
        for round in 0..100 {
            log.append(&vec![round; 7_777]);
        }
        let (old, current) = files.contents();
        assert_eq!(old.len(), 40_000);
        assert!(current.len() <= 40_000);
        let all = [old, current].concat();
        assert_eq!(all.last(), Some(&99));
        assert!(all.is_sorted(), "no byte is out of order");
    }

    #[test]
    fn a_log_goes_on_where_the_last_run_ended() {
        let files = files();
        files.log(100).append(b"first run\n");
        files.log(100).append(b"second run\n");
        assert_eq!(files.contents().1, b"first run\nsecond run\n");
        files.log(10).append(b"third");
        assert_eq!(files.contents(), (b"econd run\n".to_vec(), b"third".to_vec()));
    }

    #[test]
    fn the_tail_is_safe_to_print() {
        let log = files().log(1000);
        assert!(log.tail(5).is_empty());
        log.append(b"zero\r\none\ttab\n\x1b[2Jtwo\x07\nthree\xff");
        assert_eq!(log.tail(3), ["one\ttab", "\\u{1b}[2Jtwo\\u{7}", "three\u{fffd}"]);
        assert_eq!(log.tail(100).len(), 4);
        assert!(log.tail(0).is_empty());
        log.append(b"\n\n");
        assert_eq!(log.tail(2), ["three\u{fffd}", ""]);
    }

    #[test]
    fn the_tail_forgets_what_is_long_ago() {
        let log = files().log(1 << 20);
        log.append(&[b'a'; TAIL_BYTES - 1]);
        log.append(b"\nb");
        let tail = log.tail(10);
        assert_eq!(tail.iter().map(String::len).collect::<Vec<_>>(), [TAIL_BYTES - 2, 1]);
        log.append(&vec![b'c'; 3 * TAIL_BYTES]);
        assert_eq!(log.tail(10), ["c".repeat(TAIL_BYTES)]);
    }

    #[test]
    fn a_file_that_cannot_be_written_loses_output_and_nothing_else() {
        let files = files();
        std::fs::write(&files.current, b"").unwrap();
        std::fs::write(&files.old, b"").unwrap();
        let read_only = || File::open(&files.current).unwrap();
        let log = ConsoleLog::new(read_only(), read_only(), 10).unwrap();
        log.append(b"into the void");
        assert_eq!(log.tail(1), ["into the void"]);
    }
}
