//! One line on the terminal while something takes longer than a moment. It is gone without a trace when that is done.
//!
//! There is none where standard error is no terminal: who reads a log wants no spinner in it.

use crate::context::variable;
use crate::terminal;
use boxes::progress::Step;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// What is done within this time shows nothing: a line that flashes up tells nobody anything.
const DELAY: Duration = Duration::from_millis(700);

/// How long each picture of the spinner is seen.
const FRAME: Duration = Duration::from_millis(100);

/// The line on the terminal, which is one as the terminal is, for [`aside`]. Held only for an assignment or a copy.
static LINE: Mutex<Option<ProgressBar>> = Mutex::new(None);

/// Something that takes time, until dropped.
pub struct Progress {
    line: Option<Line>,
}

struct Line {
    bar: ProgressBar,
    /// Dropped in order to end the thread.
    ends: Option<Sender<()>>,
    draws: Option<JoinHandle<()>>,
}

impl Progress {
    /// Begins something: `text` says what. Nothing is ever shown if the user wants it `quiet`.
    pub fn begin(text: &str, quiet: bool) -> Self {
        let moves = variable("TERM").is_none_or(|term| term != "dumb");
        Self::begin_where(text, !quiet && moves && terminal::stderr_is_terminal())
    }

    fn begin_where(text: &str, seen: bool) -> Self {
        if !seen {
            return Self { line: None };
        }
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden());
        bar.set_style(ProgressStyle::with_template("{spinner} {wide_msg}").expect("it is valid"));
        let (ends, ended) = channel();
        let draws = std::thread::spawn({
            let bar = bar.clone();
            move || draw(&bar, &ended)
        });
        *LINE.lock().unwrap_or_else(PoisonError::into_inner) = Some(bar.clone());
        let progress = Self { line: Some(Line { bar, ends: Some(ends), draws: Some(draws) }) };
        progress.say(text);
        progress
    }

    /// Says what is being done from now on.
    pub fn say(&self, text: &str) {
        if let Some(line) = &self.line {
            line.bar.set_message(text.to_owned());
        }
    }

    /// Says which step `boxes` has come to.
    pub fn step(&self, step: Step<'_>) {
        // Not even put into words where nobody sees them.
        if self.line.is_some() {
            self.say(&words(step));
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        let Some(line) = &mut self.line else { return };
        *LINE.lock().unwrap_or_else(PoisonError::into_inner) = None;
        drop(line.ends.take());
        // The line is gone when this has ended, so that what follows begins where it was.
        let drawn = line.draws.take().map(JoinHandle::join);
        debug_assert!(drawn.is_none_or(|result| result.is_ok()), "drawing does not panic");
    }
}

/// Writes something else to the terminal, above the line if there is one.
pub fn aside(write: impl FnOnce()) {
    let line = LINE.lock().unwrap_or_else(PoisonError::into_inner).clone();
    match line {
        Some(line) => line.suspend(write),
        None => write(),
    }
}

fn words(step: Step<'_>) -> String {
    match step {
        Step::Importing { mib: 0 } => "importing image…".into(),
        Step::Importing { mib } => format!("importing image… {mib} MiB"),
        Step::Booting(name) => format!("booting {name}…"),
    }
}

fn draw(bar: &ProgressBar, ended: &Receiver<()>) {
    let goes_on = |patience| ended.recv_timeout(patience) == Err(RecvTimeoutError::Timeout);
    if !goes_on(DELAY) {
        return;
    }
    bar.set_draw_target(ProgressDrawTarget::stderr());
    bar.tick();
    while goes_on(FRAME) {
        bar.tick();
    }
    bar.finish_and_clear();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_put_into_words() {
        assert_eq!(words(Step::Importing { mib: 0 }), "importing image…");
        assert_eq!(words(Step::Importing { mib: 7 }), "importing image… 7 MiB");
        assert_eq!(words(Step::Booting(&"web".parse().unwrap())), "booting web…");
    }

    #[test]
    fn without_a_terminal_there_is_nothing_to_draw() {
        let progress = Progress::begin_where("waiting", false);
        progress.step(Step::Importing { mib: 1 });
        assert!(progress.line.is_none());
        let mut written = false;
        aside(|| written = true);
        assert!(written);
    }
}
