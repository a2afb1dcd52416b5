//! The demo's input: lines of a file, or poems of the sea; and each member's share of them.

use std::path::Path;

use anyhow::{Context as _, Result, ensure};

/// Poems in the public domain.
const SEA: &str = include_str!("../assets/sea.txt");

/// The lines to send.
#[derive(Clone, Debug)]
pub(crate) struct DemoText {
    bytes: Vec<u8>,
    /// Where each line begins and ends, without its newline.
    lines: Vec<(usize, usize)>,
}

impl DemoText {
    /// Reads the file, or takes the poems.
    ///
    /// # Errors
    /// If the file cannot be read or has no line.
    pub(crate) fn read(input: Option<&Path>) -> Result<Self> {
        let Some(path) = input else { return Ok(Self::new(SEA.into())) };
        let bytes =
            std::fs::read(path).with_context(|| format!("cannot read the input {}", path.display()))?;
        let text = Self::new(bytes);
        ensure!(!text.lines.is_empty(), "the input {} has no line", path.display());
        Ok(text)
    }

    fn new(bytes: Vec<u8>) -> Self {
        let mut begin = 0;
        let mut lines = Vec::new();
        for (end, _) in bytes.iter().enumerate().filter(|(_, byte)| **byte == b'\n') {
            lines.push((begin, end));
            begin = end + 1;
        }
        if begin < bytes.len() {
            lines.push((begin, bytes.len()));
        }
        Self { bytes, lines }
    }

    pub(crate) fn lines(&self) -> usize {
        self.lines.len()
    }

    /// The bytes of the longest line.
    pub(crate) fn longest(&self) -> usize {
        self.lines.iter().map(|(begin, end)| end - begin).max().unwrap_or(0)
    }

    /// The lines that the member of `rank` sends: every `members`th of all rounds.
    pub(crate) fn share(&self, rank: usize, members: usize, rounds: u64) -> impl Iterator<Item = &[u8]> {
        let count = self.lines.len() as u64;
        let mine = (rank as u64..count.saturating_mul(rounds)).step_by(members);
        mine.map(move |number| {
            let (begin, end) =
                self.lines[usize::try_from(number % count).expect("below the number of lines")];
            &self.bytes[begin..end]
        })
    }

    /// The number of lines of that share.
    pub(crate) fn share_lines(&self, rank: usize, members: usize, rounds: u64) -> u64 {
        (self.lines.len() as u64).saturating_mul(rounds).saturating_sub(rank as u64).div_ceil(members as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_end_at_newlines_and_may_be_empty() {
        let lines = |text: &str| {
            let text = DemoText::new(text.into());
            text.share(0, 1, 1).map(|line| String::from_utf8(line.to_vec()).unwrap()).collect::<Vec<_>>()
        };
        assert_eq!(lines("a\n\nbc"), ["a", "", "bc"]);
        assert_eq!(lines("a\n"), ["a"]);
        assert!(lines("").is_empty());
    }

    #[test]
    fn shares_are_the_whole() {
        let text = DemoText::new("a\nb\nc\nd\ne".into());
        let share = |rank| text.share(rank, 2, 3).map(|line| line[0]).collect::<Vec<_>>();
        assert_eq!(share(0), *b"acebdace", "every second line, over all rounds");
        assert_eq!(share(0).len() + share(1).len(), 15);
        for rank in 0..2 {
            assert_eq!(text.share_lines(rank, 2, 3), share(rank).len() as u64);
        }
        assert_eq!(text.share_lines(20, 21, 4), 0);
    }

    /// Members that work until they are killed have more rounds than can be counted in lines.
    #[test]
    fn rounds_may_be_endless() {
        let text = DemoText::new("a\nb\nc".into());
        assert_eq!(text.share(1, 3, u64::MAX).take(2).collect::<Vec<_>>(), [b"b", b"b"]);
        assert!(text.share_lines(1, 3, u64::MAX) > u64::MAX / 4);
    }

    #[test]
    fn the_poems_are_there() {
        let text = DemoText::read(None).unwrap();
        assert_eq!((text.lines(), text.longest()), (272, 103));
        let missing = DemoText::read(Some(Path::new("/nonexistent/input"))).unwrap_err();
        assert_eq!(missing.to_string(), "cannot read the input /nonexistent/input");
    }
}
