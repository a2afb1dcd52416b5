//! What members have delivered, compared (Derecho §2: virtual synchrony).
//!
//! In each view all accounts are prefixes of the longest \[V3\]; members that continued into a further view have all of it,
//! and so have those that live to the end, in the last \[V2\]. See `member::churn` for the records.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context as _, Result};

use crate::member::churn::VIEW_MARK;

/// The accounts of all members.
#[derive(Debug, Default)]
pub(crate) struct Accounts {
    /// By view, each member's part.
    views: BTreeMap<u64, Vec<Part>>,
}

/// What one member has delivered in one view.
#[derive(Debug)]
struct Part {
    member: String,
    /// A digest of its members.
    beginning: u64,
    /// After each message, a digest of all up to it.
    digests: Vec<u64>,
    /// It was a member to the end of the view.
    is_whole: bool,
}

impl Accounts {
    /// Takes one member's account in. A record that a killed member left half-written is its last, and is left out.
    pub(crate) fn read(&mut self, path: &Path, survives: bool) -> Result<()> {
        let bytes = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
        let member = path.file_stem().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
        self.add(&member, &bytes, survives);
        Ok(())
    }

    fn add(&mut self, member: &str, bytes: &[u8], survives: bool) {
        let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("8 bytes"));
        let mut part: Option<(u64, Part)> = None;
        for record in bytes.chunks_exact(16) {
            let (view, digest) = (word(&record[..8]), word(&record[8..]));
            if view & VIEW_MARK != 0 {
                let (member, digests) = (member.to_owned(), Vec::new());
                let next = Part { member, beginning: digest, digests, is_whole: survives };
                if let Some((view, before)) = part.replace((view & !VIEW_MARK, next)) {
                    self.views.entry(view).or_default().push(Part { is_whole: true, ..before });
                }
            } else if let Some((_, part)) = &mut part {
                part.digests.push(digest);
            }
        }
        if let Some((view, part)) = part {
            self.views.entry(view).or_default().push(part);
        }
    }

    /// How many views there were.
    pub(crate) fn views(&self) -> u64 {
        self.views.len() as u64
    }

    /// How many messages some member has delivered.
    pub(crate) fn messages(&self) -> u64 {
        self.views.values().flat_map(|parts| parts.iter().map(|part| part.digests.len()).max()).sum::<usize>()
            as u64
    }

    /// All violations.
    pub(crate) fn faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        for (view, parts) in &self.views {
            let Some(longest) = parts.iter().max_by_key(|part| part.digests.len()) else { continue };
            for part in parts {
                let (name, count) = (&part.member, part.digests.len());
                if part.beginning != longest.beginning {
                    faults
                        .push(format!("view {view} has other members at {name} than at {}", longest.member));
                } else if part.digests != longest.digests[..count] {
                    let same =
                        part.digests.iter().zip(&longest.digests).take_while(|(one, other)| one == other);
                    let (same, other) = (same.count(), &longest.member);
                    faults.push(format!("view {view}: {name} and {other} differ from message {same} on"));
                } else if part.is_whole && count < longest.digests.len() {
                    let (all, other) = (longest.digests.len(), &longest.member);
                    faults.push(format!(
                        "view {view}: {name} has ended it with {count} messages, {other} has {all}"
                    ));
                }
            }
        }
        faults
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn account(views: &[(u64, &[u64])]) -> Vec<u8> {
        let mut words = Vec::new();
        for (view, digests) in views {
            words.extend([view | VIEW_MARK, 7]);
            digests.iter().for_each(|digest| words.extend([*view, *digest]));
        }
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    fn faults(members: &[(&[u8], bool)]) -> usize {
        let mut accounts = Accounts::default();
        members.iter().for_each(|(bytes, survives)| accounts.add("m", bytes, *survives));
        accounts.faults().len()
    }

    #[test]
    fn the_dead_have_prefixes_and_the_others_everything() {
        let whole = account(&[(0, &[1, 2, 3]), (1, &[4, 5])]);
        let dead = account(&[(0, &[1, 2])]);
        assert_eq!(faults(&[(&whole, true), (&whole, true), (&dead, false)]), 0);
        assert_eq!(faults(&[(&whole, true), (&dead[..dead.len() - 3], false)]), 0, "a torn record");
        let behind = account(&[(0, &[1, 2]), (1, &[4, 5])]);
        assert_eq!(faults(&[(&whole, true), (&behind, true)]), 1, "lost at a change of views");
        let short = account(&[(0, &[1, 2, 3]), (1, &[4])]);
        assert_eq!(faults(&[(&whole, true), (&short, true)]), 1, "lost at the end");
        assert_eq!(faults(&[(&whole, true), (&short, false)]), 0, "killed before the end");
        let other = account(&[(0, &[1, 3])]);
        assert_eq!(faults(&[(&whole, true), (&other, false)]), 1, "another order");
        let ahead = account(&[(0, &[1, 2, 3, 9])]);
        assert_eq!(faults(&[(&whole, true), (&ahead, false)]), 1, "delivered by the dead alone [V3]");
    }
}
