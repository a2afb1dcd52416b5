//! Names of partitions (OMG DDS 1.4 §2.2.3.13): a writer and a reader match only if they are in a common one.
//!
//! A name may be a pattern, as those of `fnmatch` in POSIX: `*` stands for any text, `?` for any character, `[a-c]` for one of these, `[!a-c]`
//! for any other one. A `[` without a `]` stands for itself, and alone makes no pattern. Classes (`[:alpha:]`), equivalences and `\` are not
//! special, and `/` is a character as any other. A pattern matches names, and no patterns. Endpoints without names are in the partition
//! whose name is empty.

use super::Qos;

impl Qos {
    /// Returns whether endpoints with these policies and with those of `other` are in a common partition. If they are in none, they do not
    /// match, which is no error and changes no status.
    ///
    /// ```
    /// use squall_dds::Qos;
    ///
    /// let of = |partition: &[&str]| Qos { partition: partition.iter().map(|name| name.to_string()).collect(), ..Qos::ATOMIC };
    /// assert!(of(&["north/1", "south"]).shares_partition(&of(&["north/*"])));
    /// assert!(!of(&["north/1"]).shares_partition(&of(&[])));
    /// assert!(of(&[]).shares_partition(&of(&["*"])));
    /// ```
    #[must_use]
    pub fn shares_partition(&self, other: &Self) -> bool {
        let own = names(&self.partition);
        own.iter().any(|one| names(&other.partition).iter().any(|other| is_common(one, other)))
    }
}

fn names(partition: &[String]) -> Vec<&str> {
    if partition.is_empty() { vec![""] } else { partition.iter().map(String::as_str).collect() }
}

fn is_common(one: &str, other: &str) -> bool {
    match (is_pattern(one), is_pattern(other)) {
        (false, false) => one == other,
        (true, false) => fits(one, other),
        (false, true) => fits(other, one),
        (true, true) => false,
    }
}

fn is_pattern(name: &str) -> bool {
    // If the first bracket has no end, no later one has.
    name.contains(['*', '?']) || name.find('[').is_some_and(|at| has_end(&name[at + 1..]))
}

/// Returns whether a bracket that has begun before `rest` has an end.
fn has_end(rest: &str) -> bool {
    bracket(&rest.chars().collect::<Vec<_>>(), ' ').is_some()
}

/// Returns whether a name fits a pattern. Takes at most as many steps as the product of their lengths.
fn fits(pattern: &str, name: &str) -> bool {
    let (pattern, name): (Vec<char>, Vec<char>) = (pattern.chars().collect(), name.chars().collect());
    let (mut p, mut n) = (0, 0);
    // Behind the last `*`, and where in the name what it stands for ends.
    let mut star = None;
    while n < name.len() {
        let step = match pattern.get(p) {
            Some('*') => {
                star = Some((p + 1, n));
                p += 1;
                continue;
            }
            Some(_) => one_fits(&pattern[p..], name[n]),
            None => None,
        };
        match (step, &mut star) {
            (Some(length), _) => (p, n) = (p + length, n + 1),
            (None, Some((behind, end))) => {
                *end += 1;
                (p, n) = (*behind, *end);
            }
            (None, None) => return false,
        }
    }
    pattern[p..].iter().all(|c| *c == '*')
}

/// Returns how much of a pattern stands for this character, if its beginning does.
fn one_fits(pattern: &[char], c: char) -> Option<usize> {
    match pattern {
        ['?', ..] => Some(1),
        ['[', rest @ ..] => match bracket(rest, c) {
            Some((length, is_in)) => is_in.then_some(1 + length),
            // Without an end it stands for itself.
            None => (c == '[').then_some(1),
        },
        [own, ..] => (*own == c).then_some(1),
        [] => None,
    }
}

/// Returns how long a bracket is that has begun, and whether it stands for this character; `None` if it has no end.
fn bracket(rest: &[char], c: char) -> Option<(usize, bool)> {
    let is_negated = matches!(rest, ['!', ..]);
    let first = usize::from(is_negated);
    // A `]` at once is one of the characters.
    let end = first + 1 + rest.get(first + 1..)?.iter().position(|c| *c == ']')?;
    let (mut at, mut is_in) = (first, false);
    while at < end {
        match rest[at..end] {
            [from, '-', to, ..] => {
                is_in |= (from..=to).contains(&c);
                at += 3;
            }
            _ => {
                is_in |= rest[at] == c;
                at += 1;
            }
        }
    }
    Some((end + 1, is_in != is_negated))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn shares(one: &[&str], other: &[&str]) -> bool {
        let of = |names: &[&str]| Qos {
            partition: names.iter().map(ToString::to_string).collect(),
            ..Qos::ATOMIC
        };
        let found = of(one).shares_partition(&of(other));
        assert_eq!(found, of(other).shares_partition(&of(one)), "it is the same both ways");
        found
    }

    #[test]
    fn endpoints_share_names() {
        for (one, other, is_shared) in [
            (&[][..], &[][..], true),
            (&[], &[""], true),
            (&["a"], &[], false),
            (&["a"], &["b"], false),
            (&["a", "b"], &["b", "c"], true),
            (&["A"], &["a"], false),
            (&["a*"], &["abc"], true),
            (&["a*"], &["a"], true),
            (&["*"], &[], true),
            (&["*"], &["*"], false),
            (&["a*"], &["a*"], false),
            (&["*/b/*"], &["a/b/c"], true),
            (&["*/b/*"], &["a/c/b"], false),
            (&["a?c"], &["abc"], true),
            (&["a?c"], &["ac"], false),
            (&["[a-c]x"], &["bx"], true),
            (&["[a-c]x"], &["dx"], false),
            (&["[!a-c]x"], &["dx"], true),
            (&["[!a-c]x"], &["ax"], false),
            (&["[]x]"], &["]"], true),
            (&["*[0-9]"], &["lane7"], true),
            (&["*[0-9]"], &["lane"], false),
            (&["lane["], &["lane["], true),
            (&["lane[]"], &["lane[]"], true),
            (&["lane[0]"], &["lane[0]"], false),
            (&["lane*"], &["lane["], true),
        ] {
            assert_eq!(shares(one, other), is_shared, "{one:?} {other:?}");
        }
    }

    #[test]
    fn a_bracket_without_end_stands_for_itself() {
        assert!(fits("[ab", "[ab") && !fits("[ab", "a"));
        assert!(!fits("[", "") && fits("[", "["));
    }

    /// The definition, which may take long.
    fn fits_by_definition(pattern: &[char], name: &[char]) -> bool {
        match (pattern, name) {
            ([], name) => name.is_empty(),
            (['*', rest @ ..], name) => (0..=name.len()).any(|at| fits_by_definition(rest, &name[at..])),
            (pattern, [c, rest @ ..]) => {
                one_fits(pattern, *c).is_some_and(|length| fits_by_definition(&pattern[length..], rest))
            }
            (_, []) => false,
        }
    }

    proptest! {
        #[test]
        fn names_fit_as_defined(pattern in "[ab*?\\[\\]!-]{0,8}", name in "[ab\\]-]{0,6}") {
            let chars = |text: &str| text.chars().collect::<Vec<_>>();
            prop_assert_eq!(fits(&pattern, &name), fits_by_definition(&chars(&pattern), &chars(&name)));
        }
    }
}
