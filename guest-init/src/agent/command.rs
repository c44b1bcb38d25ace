//! From a request to everything the child needs, worked out before the fork: afterwards there is no allocating.

use super::Defaults;
use super::user::{self, Identity, UserError};
use proto::agent::Exec;
use proto::code::Code;
use std::collections::BTreeMap;
use std::ffi::CString;

/// `PATH` of programs unless the configuration or the request says otherwise.
const DEFAULT_PATH: &[u8] = b"/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Numbers of `setrlimit(2)` that exist; the kernel would refuse others, but only after the fork.
const RLIMIT_COUNT: u32 = 16;

/// A request that cannot be carried out as it stands.
#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    /// There is no program.
    #[error("no command given")]
    Empty,
    /// Text for the kernel contains a zero byte.
    #[error("{0} contains a zero byte")]
    ZeroByte(&'static str),
    /// An environment variable has no usable name.
    #[error("`{0}` is not the name of an environment variable")]
    VariableName(String),
    /// A limit's number is unknown.
    #[error("there is no resource limit {0}")]
    Limit(u32),
    /// The user is unknown.
    #[error(transparent)]
    User(#[from] UserError),
}

impl CommandError {
    /// Its code word.
    pub fn code(&self) -> Code {
        match self {
            Self::User(UserError::Read { .. }) => Code::Io,
            Self::User(_) => Code::UserNotFound,
            _ => Code::InvalidValue,
        }
    }
}

/// What the child needs.
#[derive(Debug)]
pub struct Command {
    /// Paths to try, in order.
    pub candidates: Vec<CString>,
    /// Arguments, the program's name first.
    pub argv: Vec<CString>,
    /// `NAME=value`.
    pub environment: Vec<CString>,
    /// Working directory.
    pub workdir: CString,
    /// Who it runs as.
    pub identity: Identity,
    /// (resource, soft, hard).
    pub rlimits: Vec<(u32, u64, u64)>,
}

impl Command {
    /// Works out a request.
    ///
    /// # Errors
    /// [`CommandError`] if a part of the request is of no use.
    pub fn from_request(request: &Exec, defaults: &Defaults) -> Result<Self, CommandError> {
        let program = request
            .argv
            .first()
            .filter(|program| !program.is_empty())
            .ok_or(CommandError::Empty)?;
        let identity = user::look_up(request.user.as_deref().or(defaults.user.as_deref()))?;
        let environment = environment(request, defaults, &identity)?;
        let path = environment.get(&b"PATH"[..]).map_or(DEFAULT_PATH, Vec::as_slice);
        if let Some((unknown, ..)) =
            request.rlimits.iter().find(|(resource, ..)| *resource >= RLIMIT_COUNT)
        {
            return Err(CommandError::Limit(*unknown));
        }
        let workdir = request
            .cwd
            .as_ref()
            .or(defaults.workdir.as_ref())
            .map_or(&b"/"[..], |path| path.as_slice());
        let joined =
            environment.iter().map(|(name, value)| [name.as_slice(), b"=", value].concat());
        Ok(Self {
            candidates: texts("the command", candidates(program, path))?,
            argv: texts("an argument", request.argv.iter().map(|argument| argument.to_vec()))?,
            environment: texts("the environment", joined)?,
            workdir: CString::new(workdir)
                .map_err(|_| CommandError::ZeroByte("the working directory"))?,
            rlimits: request.rlimits.clone(),
            identity,
        })
    }
}

fn texts(
    what: &'static str,
    items: impl IntoIterator<Item = Vec<u8>>,
) -> Result<Vec<CString>, CommandError> {
    items
        .into_iter()
        .map(|item| CString::new(item).map_err(|_| CommandError::ZeroByte(what)))
        .collect()
}

/// The guest's own variables, below the configured ones, below the request's.
fn environment(
    request: &Exec,
    defaults: &Defaults,
    identity: &Identity,
) -> Result<BTreeMap<Vec<u8>, Vec<u8>>, CommandError> {
    let mut environment = BTreeMap::new();
    let mut set = |name: &[u8], value: &[u8]| environment.insert(name.to_vec(), value.to_vec());
    set(b"PATH", DEFAULT_PATH);
    set(b"HOME", identity.home.as_bytes());
    if let Some(name) = &identity.name {
        set(b"USER", name.as_bytes());
        set(b"LOGNAME", name.as_bytes());
    }
    if let Some(shell) = &identity.shell {
        set(b"SHELL", shell.as_bytes());
    }
    if request.tty.is_some() {
        set(b"TERM", b"xterm");
    }
    for (name, value) in defaults.env.iter().chain(&request.env) {
        if name.is_empty() || name.contains(&b'=') {
            return Err(CommandError::VariableName(String::from_utf8_lossy(name).into_owned()));
        }
        set(name, value);
    }
    Ok(environment)
}

/// As `execvp(3)` searches: not at all if the program's name has a slash; an empty element is the current directory.
fn candidates(program: &[u8], path: &[u8]) -> Vec<Vec<u8>> {
    if program.contains(&b'/') {
        return vec![program.to_vec()];
    }
    let below = |directory: &[u8]| match directory {
        b"" => program.to_vec(),
        _ => [directory, b"/", program].concat(),
    };
    path.split(|byte| *byte == b':').map(below).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_bytes::ByteBuf;

    fn bytes(text: &str) -> ByteBuf {
        ByteBuf::from(text.as_bytes().to_vec())
    }

    fn pair(name: &str, value: &str) -> (ByteBuf, ByteBuf) {
        (bytes(name), bytes(value))
    }

    #[test]
    fn the_request_wins_over_the_configuration_over_the_guest() {
        let defaults = Defaults {
            env: vec![pair("A", "config"), pair("B", "config"), pair("HOME", "/srv")],
            ..Defaults::default()
        };
        let request =
            Exec { argv: vec![bytes("x")], env: vec![pair("B", "request")], ..Exec::default() };
        let command = Command::from_request(&request, &defaults).unwrap();
        let environment: Vec<&str> =
            command.environment.iter().map(|text| text.to_str().unwrap()).collect();
        for expected in ["A=config", "B=request", "HOME=/srv"] {
            assert!(environment.contains(&expected), "{expected} in {environment:?}");
        }
        assert!(!environment.iter().any(|text| text.starts_with("TERM=")));
        assert_eq!(command.candidates.first().unwrap().to_str().unwrap(), "/usr/local/sbin/x");
    }

    #[test]
    fn the_requests_path_is_searched() {
        let request =
            Exec { argv: vec![bytes("x")], env: vec![pair("PATH", "/a::/b")], ..Exec::default() };
        let command = Command::from_request(&request, &Defaults::default()).unwrap();
        let candidates: Vec<&str> =
            command.candidates.iter().map(|path| path.to_str().unwrap()).collect();
        assert_eq!(candidates, ["/a/x", "x", "/b/x"]);
        let request = Exec { argv: vec![bytes("./x")], ..request };
        let command = Command::from_request(&request, &Defaults::default()).unwrap();
        assert_eq!(command.candidates.len(), 1);
    }

    #[test]
    fn useless_requests_are_refused_before_a_fork() {
        let refused = |request: Exec| {
            Command::from_request(&request, &Defaults::default()).unwrap_err().code()
        };
        let with = |argv: &[&str]| Exec {
            argv: argv.iter().map(|text| bytes(text)).collect(),
            ..Exec::default()
        };
        assert_eq!(refused(with(&[])), Code::InvalidValue);
        assert_eq!(refused(with(&[""])), Code::InvalidValue);
        assert_eq!(refused(with(&["a\0b"])), Code::InvalidValue);
        assert_eq!(refused(with(&["a", "b\0"])), Code::InvalidValue);
        assert_eq!(
            refused(Exec { env: vec![pair("A=B", "c")], ..with(&["a"]) }),
            Code::InvalidValue
        );
        assert_eq!(refused(Exec { env: vec![pair("", "c")], ..with(&["a"]) }), Code::InvalidValue);
        assert_eq!(refused(Exec { cwd: Some(bytes("/\0")), ..with(&["a"]) }), Code::InvalidValue);
        assert_eq!(refused(Exec { rlimits: vec![(16, 0, 0)], ..with(&["a"]) }), Code::InvalidValue);
        assert_eq!(
            refused(Exec { user: Some("no such user".into()), ..with(&["a"]) }),
            Code::UserNotFound
        );
    }
}
