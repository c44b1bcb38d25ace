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
