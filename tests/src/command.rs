//! Runs a command with a deadline and keeps what it printed.

use std::ffi::OsStr;
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};
use wait_timeout::ChildExt;

/// Deadline of a command unless a test sets another. Emulated hosts are slow; this only has to end what hangs.
const DEADLINE: Duration = Duration::from_secs(240);

/// A command about to be run.
pub struct Invocation {
    command: Command,
    stdin: Option<Vec<u8>>,
    deadline: Duration,
    line: String,
}

/// A command that has ended.
#[derive(Debug)]
pub struct Finished {
    /// Exit code; 128 + number if a signal ended it.
    pub code: i32,
    /// Standard output.
    pub stdout: Vec<u8>,
    /// Standard error.
    pub stderr: Vec<u8>,
    /// Wall-clock time.
    pub elapsed: Duration,
    line: String,
}

impl Invocation {
    /// A command; standard input is empty unless [`Self::stdin`] is called.
    pub fn new<S: AsRef<OsStr>>(program: &Path, args: impl IntoIterator<Item = S>) -> Self {
        let mut command = Command::new(program);
        command.args(args);
        let line = format!("{command:?}");
        Self { command, stdin: None, deadline: DEADLINE, line }
    }

    /// Adds arguments.
    #[must_use]
    pub fn args<S: AsRef<OsStr>>(mut self, args: impl IntoIterator<Item = S>) -> Self {
        self.command.args(args);
        self.line = format!("{:?}", self.command);
        self
    }

    /// Sets an environment variable.
    #[must_use]
    pub fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.command.env(name, value);
        self
    }

    /// Sets the working directory.
    #[must_use]
    pub fn current_dir(mut self, path: &Path) -> Self {
        self.command.current_dir(path);
        self
    }

    /// Gives bytes as standard input, then end of file.
    #[must_use]
    pub fn stdin(mut self, bytes: impl Into<Vec<u8>>) -> Self {
        self.stdin = Some(bytes.into());
        self
    }

    /// Sets the deadline.
    #[must_use]
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// Starts the command with all three streams piped.
    pub fn spawn(mut self) -> Child {
        self.command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        self.command.spawn().unwrap_or_else(|error| panic!("cannot start {}: {error}", self.line))
    }

    /// Runs the command to its end.
    pub fn run(self) -> Finished {
        let (line, deadline, input) = (self.line.clone(), self.deadline, self.stdin.clone());
        let begin = Instant::now();
        let mut child = self.spawn();
        let mut stdin = child.stdin.take().expect("stdin is piped");
        let writer = thread::spawn(move || {
            // A command that ends without reading all its input is not an error of the test.
            let _ = stdin.write_all(&input.unwrap_or_default());
        });
        let stdout = drain(child.stdout.take().expect("stdout is piped"));
        let stderr = drain(child.stderr.take().expect("stderr is piped"));
        let status = child.wait_timeout(deadline).expect("wait for the command");
        if status.is_none() {
            child.kill().expect("kill the command");
            child.wait().expect("reap the command");
        }
        writer.join().expect("writer thread");
        let (stdout, stderr) = (stdout.join().expect("reader"), stderr.join().expect("reader"));
        let elapsed = begin.elapsed();
        let Some(status) = status else {
            panic!(
                "{line} did not end within {deadline:?}\nstdout: {}\nstderr: {}",
                String::from_utf8_lossy(&stdout),
                String::from_utf8_lossy(&stderr)
            );
        };
        let signal = std::os::unix::process::ExitStatusExt::signal(&status);
        let code = status.code().unwrap_or_else(|| 128 + signal.unwrap_or_default());
        Finished { code, stdout, stderr, elapsed, line }
    }

    /// Runs the command, which must succeed, and returns its standard output without surrounding white space.
    pub fn text(self) -> String {
        self.run().assert_code(0).stdout_text().trim().to_owned()
    }
}

fn drain(mut stream: impl Read + Send + 'static) -> thread::JoinHandle<Vec<u8>> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).expect("read the command's output");
        bytes
    })
}

impl Finished {
    /// Standard output as text.
    #[must_use]
    pub fn stdout_text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    /// Standard error as text.
    #[must_use]
    pub fn stderr_text(&self) -> String {
        String::from_utf8_lossy(&self.stderr).into_owned()
    }

    /// Asserts on the exit code.
    #[track_caller]
    #[must_use]
    pub fn assert_code(self, code: i32) -> Self {
        assert_eq!(self.code, code, "exit code of {self}");
        self
    }

    /// Asserts on the whole standard output.
    #[track_caller]
    pub fn assert_stdout(self, text: &str) -> Self {
        assert_eq!(self.stdout_text(), text, "standard output of {self}");
        self
    }

    /// Asserts that standard error holds a text.
    #[track_caller]
    pub fn assert_stderr_contains(self, text: &str) -> Self {
        assert!(
            self.stderr_text().contains(text),
            "`{text}` is not in the standard error of {self}"
        );
        self
    }
}

impl std::fmt::Display for Finished {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let shorten =
            |bytes: &[u8]| String::from_utf8_lossy(&bytes[..bytes.len().min(4000)]).into_owned();
        write!(
            f,
            "{} → {} after {:?}\nstdout: {}\nstderr: {}",
            self.line,
            self.code,
            self.elapsed,
            shorten(&self.stdout),
            shorten(&self.stderr)
        )
    }
}
