//! What all members must have in common, setting by setting, so that two that differ can say in what.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::digest;

/// The settings that must be the same at all members, each as people write it.
///
/// Processes send each other all of it once they have proved the secret: it is some hundred bytes for each subgroup.
///
/// ```
/// use squall_transports::bootstrap::Agreement;
///
/// let with = |window: &str| Agreement::new([("`window` of subgroup `a`".into(), window.into())]);
/// let difference = with("64").difference(&with("128")).unwrap();
/// assert_eq!(difference.at_refusing(), "`window` of subgroup `a` is 64 here and 128 there");
/// assert_eq!(difference.at_refused(), "`window` of subgroup `a` is 128 here and 64 there");
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Agreement {
    /// By the setting.
    settings: BTreeMap<String, String>,
    /// The group and the view that begin, if the members know them.
    start: Option<(u64, u64)>,
}

/// The first setting in which a process that refuses another differs from it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SettingDifference {
    /// The setting, with the table that it is in.
    pub setting: String,
    /// Its value at the process that refuses; `None` if it has no such setting.
    pub refusing: Option<String>,
    /// Its value at the process that is refused.
    pub refused: Option<String>,
}

impl Agreement {
    /// Creates an agreement on settings with their values. If there are too many for a message, it is on all of them together.
    #[must_use]
    pub fn new(settings: impl IntoIterator<Item = (String, String)>) -> Self {
        let settings: BTreeMap<String, String> = settings.into_iter().collect();
        let bytes: usize = settings.iter().map(|(setting, value)| setting.len() + value.len() + 8).sum();
        let whole = Self { settings, start: None };
        if bytes <= AGREEMENT_BYTES_MAX {
            return whole;
        }
        let text: String = whole.digest()[..8].iter().map(|byte| format!("{byte:02x}")).collect();
        Self { settings: [(ALL.into(), text)].into(), start: None }
    }

    /// Returns an agreement on one more setting.
    #[must_use]
    pub fn with(mut self, setting: &str, value: &str) -> Self {
        self.settings.insert(setting.into(), value.into());
        self
    }

    /// Returns the agreement of the members of a view that begins, whose number and group they know.
    #[must_use]
    pub fn for_start(&self, group: u64, view: u64) -> Self {
        Self { start: Some((group, view)), ..self.clone() }
    }

    /// Returns a digest of all of it.
    ///
    /// # Panics
    /// Never: it is short enough to be encoded.
    #[must_use]
    pub fn digest(&self) -> [u8; 32] {
        digest(&postcard::to_stdvec(self).expect("texts and numbers can be encoded"))
    }

    /// Returns whether the settings are the same, whatever view begins.
    #[must_use]
    pub fn has_settings_of(&self, other: &Self) -> bool {
        self.settings == other.settings
    }

    /// Returns the first setting in which this process, which refuses the other one, differs from it.
    #[must_use]
    pub fn difference(&self, refused: &Self) -> Option<SettingDifference> {
        let differs = |setting: &&String| self.settings.get(*setting) != refused.settings.get(*setting);
        let first = self.settings.keys().chain(refused.settings.keys()).filter(differs).min();
        if let Some(setting) = first {
            let (ours, theirs) =
                (self.settings.get(setting).cloned(), refused.settings.get(setting).cloned());
            return Some(SettingDifference { setting: setting.clone(), refusing: ours, refused: theirs });
        }
        let start = |(group, view): (u64, u64)| format!("view {view} of group {group:x}");
        (self.start != refused.start).then(|| SettingDifference {
            setting: "the view that begins".into(),
            refusing: self.start.map(start),
            refused: refused.start.map(start),
        })
    }
}

impl SettingDifference {
    /// Returns it in the words of the process that refuses the other one.
    #[must_use]
    pub fn at_refusing(&self) -> String {
        self.sentence(&self.refusing, &self.refused)
    }

    /// Returns it in the words of the process that is refused.
    #[must_use]
    pub fn at_refused(&self) -> String {
        self.sentence(&self.refused, &self.refusing)
    }

    fn sentence(&self, here: &Option<String>, there: &Option<String>) -> String {
        format!("{} is {} here and {} there", self.setting, Value(here), Value(there))
    }
}

struct Value<'a>(&'a Option<String>);

impl fmt::Display for Value<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.as_deref().unwrap_or("missing"))
    }
}

/// The longest agreement that is sent setting by setting: a fourth of a frame.
const AGREEMENT_BYTES_MAX: usize = 1 << 17;
const ALL: &str = "the digest of all settings that must agree";

#[cfg(test)]
mod tests {
    use super::*;

    fn agreement(settings: &[(&str, &str)]) -> Agreement {
        Agreement::new(settings.iter().map(|(setting, value)| ((*setting).into(), (*value).into())))
    }

    #[test]
    fn the_first_difference_is_named_from_both_ends() {
        let ours = agreement(&[("`a`", "1"), ("`b`", "2"), ("`c`", "3")]);
        let theirs = agreement(&[("`a`", "1"), ("`c`", "4")]);
        let difference = ours.difference(&theirs).unwrap();
        assert_eq!(difference.at_refusing(), "`b` is 2 here and missing there");
        assert_eq!(difference.at_refused(), "`b` is missing here and 2 there");
        assert_eq!(ours.difference(&ours.clone()), None);
        assert_ne!(ours.digest(), theirs.digest());
    }

    /// Settings come before what the members have not written themselves.
    #[test]
    fn a_view_that_begins_is_a_difference_of_its_own() {
        let (one, two) = (agreement(&[("`a`", "1")]), agreement(&[("`a`", "2")]));
        let difference = one.for_start(10, 1).difference(&one.for_start(10, 2)).unwrap();
        assert_eq!(
            difference.at_refusing(),
            "the view that begins is view 1 of group a here and view 2 of group a there"
        );
        assert!(one.for_start(10, 1).has_settings_of(&one));
        let difference = one.for_start(10, 1).difference(&two.for_start(10, 2)).unwrap();
        assert_eq!(difference.setting, "`a`");
    }

    /// An agreement fits into a frame, however many settings there are.
    #[test]
    fn a_long_agreement_is_a_digest() {
        let long = |last: &str| {
            let many = (0..10_000).map(|number| (format!("setting {number}"), "value".into()));
            Agreement::new(many.chain([("last".into(), last.into())]))
        };
        assert!(postcard::to_stdvec(&long("a")).unwrap().len() < 100);
        let difference = long("a").difference(&long("b")).unwrap();
        assert!(difference.at_refused().starts_with(ALL));
        assert_eq!(long("a").difference(&long("a")), None);
    }
}
