//! Finds the known word that a misspelled word probably stands for.

/// Returns the word of `known` that is most similar to `word`, if one is similar enough.
pub(super) fn nearest<'k>(word: &str, known: &[&'k str]) -> Option<&'k str> {
    let likeness = known.iter().map(|candidate| (distance(word, candidate), *candidate));
    let (distance, nearest) = likeness.min_by_key(|(distance, _)| *distance)?;
    // A third of the letters may be wrong, and one in short words.
    (distance <= (word.chars().count() / 3).max(1)).then_some(nearest)
}

/// Returns the number of letters that must be inserted, removed, replaced, or swapped with their neighbour.
fn distance(from: &str, to: &str) -> usize {
    let (from, to): (Vec<char>, Vec<char>) = (from.chars().collect(), to.chars().collect());
    // rows[i][j] is the distance between the first i letters of `from` and the first j of `to`.
    let mut rows = vec![(0..=to.len()).collect::<Vec<_>>()];
    for i in 1..=from.len() {
        let mut row = vec![i];
        for j in 1..=to.len() {
            let replaced = rows[i - 1][j - 1] + usize::from(from[i - 1] != to[j - 1]);
            let mut least = replaced.min(rows[i - 1][j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && from[i - 1] == to[j - 2] && from[i - 2] == to[j - 1] {
                least = least.min(rows[i - 2][j - 2] + 1);
            }
            row.push(least);
        }
        rows.push(row);
    }
    rows[from.len()][to.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_misspelled_word_is_recognised_and_another_is_not() {
        let known = ["window", "window_bytes", "mode", "members", "senders"];
        for (word, meant) in [
            ("windw", Some("window")),
            ("widnow", Some("window")),
            ("window_byte", Some("window_bytes")),
            ("member", Some("members")),
            ("sender", Some("senders")),
            ("mod", Some("mode")),
            ("compression", None),
            ("x", None),
            ("", None),
        ] {
            assert_eq!(nearest(word, &known), meant, "{word}");
        }
        assert_eq!(nearest("window", &[]), None);
    }
}
