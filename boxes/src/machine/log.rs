//! Logs of the machine: what its console and QEMU print, kept small.
//!
//! QEMU appends to its files for as long as it runs, and nothing of ours runs beside it. So each command that finds a
//! log too large cuts it; QEMU, which opened it for appending, carries on at its new end.

use crate::{Error, Result};
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Largest size a log is left with.
const LIMIT_BYTES: u64 = 1 << 20;

/// How much of a log's end is looked at for its last lines.
const TAIL_BYTES: u64 = 16 << 10;

/// Opens an empty log for appending.
pub(super) fn create(path: &Path) -> Result<File> {
    let open = || {
        let file = OpenOptions::new()
            .append(true)
            .create(true)
            .mode(0o600)
            .custom_flags(libc::O_CLOEXEC)
            .open(path)?;
        file.set_len(0)?;
        Ok(file)
    };
    open().map_err(Error::io(format!("open {}", path.display())))
}

/// Empties a log that has grown too large. Its content is of use only when a start fails, and starts print little.
pub(super) fn cut(path: &Path) -> io::Result<()> {
    if path.metadata().is_ok_and(|metadata| metadata.len() > LIMIT_BYTES) {
        OpenOptions::new().write(true).open(path)?.set_len(0)?;
    }
    Ok(())
}

/// The last lines of a log; none if it cannot be read.
pub(super) fn tail(path: &Path, lines: usize) -> Vec<String> {
    let read = || {
        let mut file = File::open(path)?;
        let from = file.metadata()?.len().saturating_sub(TAIL_BYTES);
        file.seek(SeekFrom::Start(from))?;
        let mut bytes = Vec::new();
        file.take(TAIL_BYTES).read_to_end(&mut bytes)?;
        Ok::<_, io::Error>(bytes)
    };
    let bytes = read().unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes);
    let mut last: Vec<String> = text
        .lines()
        .rev()
        .map(|line| line.trim_end().to_owned())
        .filter(|line| !line.is_empty())
        .take(lines)
        .collect();
    last.reverse();
    last
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn the_tail_is_the_end_without_empty_lines() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("log");
        assert_eq!(tail(&path, 3), Vec::<String>::new());
        let mut log = create(&path).unwrap();
        write!(log, "{}\r\none\r\n\r\ntwo\r\n", "x".repeat(20_000)).unwrap();
        assert_eq!(tail(&path, 2), ["one", "two"]);
    }

    #[test]
    fn a_log_that_is_cut_is_written_on_from_its_start() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("log");
        let mut log = create(&path).unwrap();
        log.write_all(&vec![b'x'; 1000]).unwrap();
        cut(&path).unwrap();
        assert_eq!(path.metadata().unwrap().len(), 1000);
        log.write_all(&vec![b'x'; 1 << 20]).unwrap();
        cut(&path).unwrap();
        log.write_all(b"on").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"on");
        drop(create(&path).unwrap());
        assert_eq!(path.metadata().unwrap().len(), 0);
    }
}
