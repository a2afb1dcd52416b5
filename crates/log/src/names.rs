//! The names of files within a folder.

use crate::record::LogPosition;

/// The folder of the segments.
pub(crate) const LOG: &str = "log";
/// The folder of the checkpoints.
pub(crate) const CHECKPOINTS: &str = "checkpoints";
/// What the folder belongs to.
pub(crate) const IDENTITY: &str = "identity";
/// The register.
pub(crate) const REGISTER: &str = "register";
/// The file that the running process has locked.
pub(crate) const LOCK: &str = "LOCK";
/// What makes a folder a copy, which no process uses as its own.
pub(crate) const BACKUP: &str = "BACKUP";
/// A copy that is being made.
pub(crate) const UNFINISHED_BACKUP: &str = "BACKUP.new";
/// The folder of what a repair has moved away.
pub(crate) const ASIDE: &str = "aside";

/// How the names of files end that are not finished.
pub(crate) const UNFINISHED: &str = ".new";

/// The path of a segment.
pub(crate) fn segment(number: u32) -> String {
    format!("{LOG}/{number:010}.segment")
}

/// The path of a segment that is being made.
pub(crate) fn new_segment(number: u32) -> String {
    format!("{LOG}/{number:010}{UNFINISHED}")
}

/// Reads the name of a segment. Not fuzzed: a name in the log's own folder, of ten digits.
pub(crate) fn parse_segment(name: &str) -> Option<u32> {
    let digits = name.strip_suffix(".segment")?;
    (digits.len() == 10).then(|| digits.parse().ok())?
}

/// The path of a checkpoint.
pub(crate) fn checkpoint(subgroup: u32, position: LogPosition) -> String {
    format!("{CHECKPOINTS}/{subgroup}-{}-{}", position.view, position.sequence)
}

/// Reads the name of a checkpoint. Not fuzzed: a name in the log's own folder, which is written again and compared.
pub(crate) fn parse_checkpoint(name: &str) -> Option<(u32, LogPosition)> {
    let mut parts = name.split('-');
    let mut next = || parts.next()?.parse().ok();
    let (subgroup, view, sequence): (u64, u64, u64) = (next()?, next()?, next()?);
    let found = (u32::try_from(subgroup).ok()?, LogPosition { view, sequence });
    (checkpoint(found.0, found.1).rsplit('/').next() == Some(name)).then_some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_written() {
        assert_eq!(parse_segment("0000000007.segment"), Some(7));
        assert_eq!(segment(7), "log/0000000007.segment");
        assert_eq!([parse_segment("7.segment"), parse_segment("0000000007.new")], [None, None]);
        let position = LogPosition { view: 5, sequence: 900 };
        assert_eq!(checkpoint(3, position), "checkpoints/3-5-900");
        assert_eq!(parse_checkpoint("3-5-900"), Some((3, position)));
        for other in ["3-5-900.new", "3-5", "3-5-900-1", "03-5-900", "3-5-+900", ""] {
            assert_eq!(parse_checkpoint(other), None, "{other}");
        }
    }
}
