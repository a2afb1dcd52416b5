//! Finds the known word that a misspelled word probably stands for.

/// Returns the word of `known` that is most similar to `word`, if one is similar enough.
pub(super) fn nearest<'k>(word: &str, known: &[&'k str]) -> Option<&'k str> {
    // Letters that must be inserted, removed, replaced, or swapped with their neighbour.
    let likeness = known.iter().map(|candidate| (strsim::osa_distance(word, candidate), *candidate));
    let (distance, nearest) = likeness.min_by_key(|(distance, _)| *distance)?;
    // A third of the letters may be wrong, and one in short words.
    (distance <= (word.chars().count() / 3).max(1)).then_some(nearest)
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
