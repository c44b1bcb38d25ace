//! Names that look like what was typed.

/// Most edits that still count as a slip of the finger, for a name of that length.
fn tolerance(len: usize) -> usize {
    match len {
        0..=2 => 1,
        3..=7 => 2,
        _ => 3,
    }
}

/// The names that look like `typed`, likeliest first.
#[must_use]
pub fn rank(typed: &str, names: Vec<String>) -> Vec<String> {
    let limit = tolerance(typed.chars().count());
    let mut near: Vec<(usize, String)> = names
        .into_iter()
        .map(|name| (distance(typed, &name), name))
        .filter(|(edits, _)| *edits <= limit)
        .collect();
    near.sort();
    near.into_iter().map(|(_, name)| name).collect()
}

/// Number of letters to insert, remove, replace or swap with their neighbour (restricted Damerau–Levenshtein).
fn distance(left: &str, right: &str) -> usize {
    let (left, right): (Vec<char>, Vec<char>) = (left.chars().collect(), right.chars().collect());
    let mut before_last: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=right.len()).collect();
    for row in 1..=left.len() {
        let mut current = vec![row];
        for column in 1..=right.len() {
            let same = left[row - 1] == right[column - 1];
            let mut best = (last[column - 1] + usize::from(!same))
                .min(last[column] + 1)
                .min(current[column - 1] + 1);
            let swapped = row > 1
                && column > 1
                && left[row - 1] == right[column - 2]
                && left[row - 2] == right[column - 1];
            if swapped {
                best = best.min(before_last[column - 2] + 1);
            }
            current.push(best);
        }
        before_last = std::mem::replace(&mut last, current);
    }
    last[right.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slips_are_found_and_other_names_are_not() {
        let names = || ["web", "worker", "box-1a2b3c"].map(String::from).to_vec();
        assert_eq!(rank("wbe", names()), ["web"]);
        assert_eq!(rank("wrker", names()), ["worker"]);
        assert_eq!(rank("box-1a2b3d", names()), ["box-1a2b3c"]);
        assert!(rank("database", names()).is_empty());
        assert_eq!(distance("", "abc"), 3);
        assert_eq!(distance("ab", "ba"), 1);
    }
}
