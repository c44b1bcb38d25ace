//! Where boxes cannot run on this computer itself, the whole command line runs in the machine instead.

use crate::attach::{self, Interaction};
use crate::context::{Context, variable};
use crate::error::{CliError, Result};
use crate::output;
use crate::progress::Progress;
use boxes::machine::{Event, INNER_HOME, Link, Machine, Record, Settings, Wishes, ensure};
use boxes::probe::{Verdict, probe};
use proto::agent::Exec;
use serde_bytes::ByteBuf;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::process::ExitCode;

/// Chooses where commands run; see [`Mode`].
const MODE: &str = "LILBOX_MACHINE";

/// Variables that mean something on this computer alone.
const NOT_PASSED: [&str; 3] = [MODE, "LILBOX_HOME", "XDG_RUNTIME_DIR"];

/// Where commands run, as `LILBOX_MACHINE` says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    /// Here if KVM can run boxes, else in the machine.
    Auto,
    /// Here: what needs a KVM that can run boxes fails without one.
    Never,
    /// In the machine.
    Always,
}

impl Mode {
    fn parse(value: Option<&OsStr>) -> Result<Self> {
        match value.map(OsStr::as_bytes) {
            None | Some(b"auto") => Ok(Self::Auto),
            Some(b"never") => Ok(Self::Never),
            Some(b"always") => Ok(Self::Always),
            Some(_) => Err(CliError::Usage(format!("{MODE} takes `auto`, `never` or `always`"))),
        }
    }
}

/// Runs this very command line in the machine, if it has to run there. `None` if it is to run here. `interaction` is
/// what the user asked for, and `quiet` tells whether nothing is to be shown of what takes long.
pub fn intercept(
    context: &Context,
    interaction: Interaction,
    quiet: bool,
) -> Result<Option<ExitCode>> {
    let reason = match Mode::parse(variable(MODE).as_deref())? {
        Mode::Never => return Ok(None),
        Mode::Always => format!("{MODE} is `always`"),
        Mode::Auto => {
            context.dirs.create()?;
            match probe(&context.install.kvm, &context.dirs.runtime) {
                Verdict::Usable => return Ok(None),
                verdict => explain(&verdict),
            }
        }
    };
    let machine = machine(context)?;
    let record = find(context, &machine, Some(&reason), quiet)?;
    let argv = std::iter::once(machine.program.clone().into_os_string())
        .chain(std::env::args_os().skip(1));
    run_inside(&machine, &record, argv.collect(), interaction).map(Some)
}

/// The machine of this user.
pub fn machine(context: &Context) -> Result<Machine> {
    let wish = |name| variable(name).map(|value| value.to_string_lossy().into_owned());
    let wishes = Wishes {
        cpus: wish("LILBOX_MACHINE_CPUS"),
        memory_mib: wish("LILBOX_MACHINE_MEMORY"),
        disk_mib: wish("LILBOX_MACHINE_DISK"),
    };
    let settings = Settings::for_this_host(&wishes)
        .map_err(|error| boxes::Error::Machine(boxes::machine::MachineError::Settings(error)))?;
    let program =
        std::env::current_exe().map_err(CliError::io("find out where this program lies"))?;
    Ok(Machine::new(&context.dirs, &context.install, settings, program))
}

/// Finds the running machine or starts it. `reason` is why a command that did not ask for it runs there.
pub fn find(
    context: &Context,
    machine: &Machine,
    reason: Option<&str>,
    quiet: bool,
) -> Result<Record> {
    context.dirs.create()?;
    let _progress = Progress::begin("starting the machine…", quiet);
    let mut tell = |event| output::note(&notice(event, reason));
    Ok(ensure(machine, &mut tell)?)
}

/// The one line that the user sees when the machine is not simply there.
fn notice(event: Event, reason: Option<&str>) -> String {
    match (event, reason) {
        (Event::Starting, None) => "note: starting the machine".into(),
        (Event::Starting, Some(reason)) => format!(
            "note: {reason}: starting an emulated machine, in which boxes run much slower \
             (`lilbox machine status` shows what it costs)"
        ),
        (Event::Restarting, _) => {
            "note: the machine belongs to another version of lilbox: restarting it".into()
        }
        (Event::Outdated, _) => {
            "note: the machine belongs to another version of lilbox, but boxes may run in it: \
                                 `lilbox machine stop` ends both, the next command starts it anew"
                .into()
        }
    }
}

/// Why KVM does not do, and what would help.
fn explain(verdict: &Verdict) -> String {
    let reason = verdict.reason().unwrap_or_default();
    match verdict {
        Verdict::Denied => {
            format!(
                "boxes cannot run on this computer itself, since {reason} (`sudo usermod -aG kvm $USER` helps)"
            )
        }
        _ => format!("boxes cannot run on this computer itself, since {reason}"),
    }
}

/// Runs a program in the machine with our terminal, streams, signals, working directory and environment.
pub fn run_inside(
    machine: &Machine,
    record: &Record,
    argv: Vec<OsString>,
    interaction: Interaction,
) -> Result<ExitCode> {
    let here = std::env::current_dir().map_err(CliError::io("find the working directory"))?;
    for path in [Some(here.as_path()), argv.first().map(Path::new)].into_iter().flatten() {
        if let Some(directory) = hidden_in_machine(path) {
            let path = path.display();
            return Err(CliError::Usage(format!(
                "{path} lies below {directory}, which the machine does not share with this computer"
            )));
        }
    }
    let exec = Exec {
        argv: argv.into_iter().map(|word| ByteBuf::from(word.into_vec())).collect(),
        env: environment(std::env::vars_os()),
        cwd: Some(ByteBuf::from(here.into_os_string().into_vec())),
        ..Exec::default()
    };
    let stream = Link::new(record).connect()?;
    attach::run(stream, exec, interaction).map_err(|error| match error {
        CliError::Boxes(boxes::Error::ConnectionLost(_)) => {
            boxes::Error::from(machine.lost()).into()
        }
        error => error,
    })
}

/// The environment of a program in the machine: ours, with lilbox's own directories moved to the machine's disk.
fn environment(ours: impl Iterator<Item = (OsString, OsString)>) -> Vec<(ByteBuf, ByteBuf)> {
    let passed = ours.filter(|(name, _)| !NOT_PASSED.iter().any(|not| name == not));
    let inner = [("LILBOX_HOME", INNER_HOME), (MODE, "never")];
    passed
        .chain(inner.map(|(name, value)| (name.into(), value.into())))
        .map(|(name, value)| (ByteBuf::from(name.into_vec()), ByteBuf::from(value.into_vec())))
        .collect()
}

/// The directory, of those that are the machine's own, in which a path lies.
fn hidden_in_machine(path: &Path) -> Option<&'static str> {
    ["/dev", "/proc", "/run", "/sys"].into_iter().find(|own| path.starts_with(own))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mode_has_three_words() {
        let parse = |text: &str| Mode::parse(Some(OsStr::new(text)));
        assert_eq!(Mode::parse(None).unwrap(), Mode::Auto);
        assert_eq!(parse("auto").unwrap(), Mode::Auto);
        assert_eq!(parse("never").unwrap(), Mode::Never);
        assert_eq!(parse("always").unwrap(), Mode::Always);
        assert!(parse("yes").is_err());
    }

    #[test]
    fn our_environment_is_passed_but_for_what_is_ours_alone() {
        let ours = [
            ("PATH", "/bin"),
            (MODE, "auto"),
            ("LILBOX_HOME", "/h"),
            ("XDG_RUNTIME_DIR", "/run/user/7"),
        ];
        let ours = ours.map(|(name, value)| (name.into(), value.into()));
        let passed = environment(ours.into_iter());
        let text = |bytes: &ByteBuf| String::from_utf8(bytes.to_vec()).unwrap();
        let passed: Vec<_> = passed.iter().map(|(name, value)| (text(name), text(value))).collect();
        let expected = [("PATH", "/bin"), ("LILBOX_HOME", INNER_HOME), (MODE, "never")];
        assert_eq!(passed, expected.map(|(name, value)| (name.to_owned(), value.to_owned())));
    }

    #[test]
    fn paths_that_the_machine_covers_are_known() {
        assert_eq!(hidden_in_machine(Path::new("/run/user/7/x")), Some("/run"));
        assert_eq!(hidden_in_machine(Path::new("/runner")), None);
        assert_eq!(hidden_in_machine(Path::new("/home/u")), None);
    }

    #[test]
    fn notices_say_why_and_what_it_costs() {
        let verdict = Verdict::Unusable { reason: "it fails".into() };
        let text = notice(Event::Starting, Some(&explain(&verdict)));
        assert!(
            text.contains("it fails") && text.contains("slower") && !text.contains('\n'),
            "{text}"
        );
        assert!(explain(&Verdict::Denied).contains("usermod"));
    }
}
