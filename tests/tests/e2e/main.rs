//! The end-to-end tests: the real `lilbox`, real kernel, real boxes. One file per feature.
//!
//! Where this host's KVM cannot run ordinary kernels, the program first tests the machine from outside, then moves
//! into it and runs everything else there, in one boot. `LILBOX_SOAK=1` selects the long forms.

#![expect(clippy::disallowed_methods, reason = "a test program reads the environment")]

use libtest_mimic::{Arguments, Trial};
use std::process::ExitCode;

/// Makes trials of functions: each returns normally or panics.
macro_rules! trials {
    ($($name:ident),+ $(,)?) => {
        /// The tests of this file.
        pub fn trials() -> Vec<libtest_mimic::Trial> {
            let file = module_path!().rsplit("::").next().unwrap_or_default();
            vec![$(libtest_mimic::Trial::test(format!("{file}::{}", stringify!($name)), || { $name(); Ok(()) })),+]
        }
    };
}

mod crash;
mod exec;
mod forms;
mod hostile;
mod image;
mod lifecycle;
mod machine;
mod output;
mod run;
mod sizes;
mod terminal;

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    // Boxes compete for the host's processors: more at once only makes each slower.
    arguments.test_threads.get_or_insert(2);
    if !tests::place::is_inside_machine() {
        let outside: Vec<Trial> = machine::trials();
        if libtest_mimic::run(&arguments, outside).has_failed() {
            return ExitCode::FAILURE;
        }
    }
    if let Some(code) = tests::place::enter() {
        return code;
    }
    let trials = [
        run::trials(),
        exec::trials(),
        output::trials(),
        lifecycle::trials(),
        sizes::trials(),
        terminal::trials(),
        image::trials(),
        hostile::trials(),
        crash::trials(),
    ];
    libtest_mimic::run(&arguments, trials.into_iter().flatten().collect()).exit_code()
}
