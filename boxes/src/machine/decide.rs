//! What a command does about the machine it finds: a table, apart from all that acts on it.

/// What is known about the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Found {
    /// Nobody holds its lock.
    Stopped,
    /// It runs, but no command has seen it come up: one is starting it, or was killed while it did.
    Starting,
    /// It runs what this lilbox would start.
    Current,
    /// It runs something else: another kernel, or another agent.
    Outdated,
}

/// What to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// Use it.
    Use,
    /// Wait for one's turn to change it, then look again.
    TakeTurn,
    /// Start it.
    Start,
    /// End it by force, then start it. Nothing of value runs in a machine that nobody saw come up.
    Replace,
    /// Ask whether boxes run in it, then [`Step::Restart`] or [`Step::UseOutdated`].
    AskForBoxes,
    /// Stop it in order, then start it.
    Restart,
    /// Use it as it is, and say so: boxes run in it.
    UseOutdated,
}

/// The table. `turn` tells whether this command has its turn to change the machine, `boxes` whether boxes run in it,
/// once that was asked.
pub(super) fn decide(found: Found, turn: bool, boxes: Option<bool>) -> Step {
    match (found, turn, boxes) {
        (Found::Current, ..) => Step::Use,
        (_, false, _) => Step::TakeTurn,
        (Found::Stopped, true, _) => Step::Start,
        (Found::Starting, true, _) => Step::Replace,
        (Found::Outdated, true, None) => Step::AskForBoxes,
        (Found::Outdated, true, Some(false)) => Step::Restart,
        (Found::Outdated, true, Some(true)) => Step::UseOutdated,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machine_is_changed_only_in_turn() {
        for found in [Found::Stopped, Found::Starting, Found::Outdated] {
            for boxes in [None, Some(false), Some(true)] {
                assert_eq!(decide(found, false, boxes), Step::TakeTurn);
            }
        }
        assert_eq!(decide(Found::Current, false, None), Step::Use);
        assert_eq!(
            decide(Found::Current, true, None),
            Step::Use,
            "another command started it meanwhile"
        );
    }

    #[test]
    fn running_boxes_are_never_taken_down_by_an_upgrade() {
        assert_eq!(decide(Found::Outdated, true, None), Step::AskForBoxes);
        assert_eq!(decide(Found::Outdated, true, Some(true)), Step::UseOutdated);
        assert_eq!(decide(Found::Outdated, true, Some(false)), Step::Restart);
    }

    #[test]
    fn a_start_that_was_cut_short_is_done_again() {
        assert_eq!(decide(Found::Starting, true, None), Step::Replace);
        assert_eq!(decide(Found::Stopped, true, None), Step::Start);
    }
}
