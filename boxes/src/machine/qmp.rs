//! A client of QEMU's control socket (the QEMU Machine Protocol): one JSON object per line, both ways.

use super::error::MachineError;
use crate::Result;
use serde_json::{Value, json};
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// QEMU answers in microseconds unless it is stuck, or busy with another client.
const PATIENCE: Duration = Duration::from_secs(20);

/// Longest line accepted; QEMU's own are a few kilobytes.
const MAX_LINE_BYTES: u64 = 1 << 20;

/// A connection.
#[derive(Debug)]
pub(super) struct Qmp {
    stream: BufReader<UnixStream>,
}

impl Qmp {
    /// Connects and leaves the negotiation mode.
    pub(super) fn connect(socket: &Path) -> Result<Self> {
        let wrap = |source| MachineError::Qmp { operation: "connect", source };
        let stream = UnixStream::connect(socket).map_err(wrap)?;
        stream.set_read_timeout(Some(PATIENCE)).map_err(wrap)?;
        stream.set_write_timeout(Some(PATIENCE)).map_err(wrap)?;
        let mut qmp = Self { stream: BufReader::new(stream) };
        let greeting = qmp.receive().map_err(wrap)?;
        if greeting.get("QMP").is_none() {
            return Err(wrap(io::Error::other("it does not greet as QEMU does")).into());
        }
        qmp.execute("negotiate", "qmp_capabilities", &json!({}))?;
        Ok(qmp)
    }

    /// What the human monitor prints for a command.
    pub(super) fn monitor(&mut self, command: &str) -> Result<String> {
        let arguments = json!({ "command-line": command });
        let answer = self.execute("ask", "human-monitor-command", &arguments)?;
        Ok(answer.as_str().unwrap_or_default().to_owned())
    }

    /// Tells QEMU to end at once.
    pub(super) fn quit(&mut self) -> Result<()> {
        self.execute("quit", "quit", &json!({})).map(drop)
    }

    fn execute(
        &mut self,
        operation: &'static str,
        command: &str,
        arguments: &Value,
    ) -> Result<Value> {
        let mut exchange = || {
            let line = json!({ "execute": command, "arguments": arguments }).to_string() + "\r\n";
            self.stream.get_mut().write_all(line.as_bytes())?;
            loop {
                let mut answer = self.receive()?;
                if let Some(value) = answer.get_mut("return") {
                    return Ok(value.take());
                }
                if let Some(error) = answer.get("error") {
                    let text =
                        error.get("desc").and_then(Value::as_str).unwrap_or("no reason given");
                    return Err(io::Error::other(text.to_owned()));
                }
                // Anything else is an event, which may come at any time.
            }
        };
        exchange().map_err(|source| MachineError::Qmp { operation, source }.into())
    }

    fn receive(&mut self) -> io::Result<Value> {
        let mut line = Vec::new();
        let mut limited = io::Read::take(&mut self.stream, MAX_LINE_BYTES);
        if limited.read_until(b'\n', &mut line)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(serde_json::from_slice(&line)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;
    use std::thread;

    /// Answers one client with these lines, one per line received; the first is sent unasked.
    fn serve(
        listener: UnixListener,
        lines: &'static [&'static str],
    ) -> thread::JoinHandle<Vec<String>> {
        thread::spawn(move || {
            let (stream, _) = listener.accept().unwrap();
            let mut reader = BufReader::new(stream);
            let mut received = Vec::new();
            for (index, line) in lines.iter().enumerate() {
                if index > 0 {
                    let mut request = String::new();
                    reader.read_line(&mut request).unwrap();
                    received.push(request);
                }
                reader.get_mut().write_all(line.as_bytes()).unwrap();
            }
            received
        })
    }

    #[test]
    fn answers_are_told_from_events_and_errors() {
        let root = tempfile::tempdir().unwrap();
        let socket = root.path().join("s");
        let server = serve(
            UnixListener::bind(&socket).unwrap(),
            &[
                "{\"QMP\": {}}\r\n",
                "{\"return\": {}}\r\n",
                "{\"event\": \"RESUME\"}\r\n{\"return\": \"a table\"}\r\n",
                "{\"error\": {\"class\": \"GenericError\", \"desc\": \"no such command\"}}\r\n",
            ],
        );
        let mut qmp = Qmp::connect(&socket).unwrap();
        assert_eq!(qmp.monitor("info usernet").unwrap(), "a table");
        let error = qmp.quit().unwrap_err();
        let source = std::error::Error::source(&error).map(ToString::to_string);
        assert_eq!(source.as_deref(), Some("no such command"));
        let requests = server.join().unwrap();
        assert!(
            requests[1].contains("info usernet") && requests[2].contains("quit"),
            "{requests:?}"
        );
    }

    #[test]
    fn a_socket_of_something_else_is_an_error() {
        let root = tempfile::tempdir().unwrap();
        let socket = root.path().join("s");
        assert!(Qmp::connect(&socket).is_err());
        let server = serve(UnixListener::bind(&socket).unwrap(), &["220 mail ready\r\n"]);
        assert!(Qmp::connect(&socket).is_err());
        server.join().unwrap();
    }
}
