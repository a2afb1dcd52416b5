//! Lines of standard input, none of which may be longer than a bound: a file without line ends must not fill the memory.

use std::io::{BufRead, Read as _};

use anyhow::{Context as _, Result, bail};

/// Reads the lines of `input`, up to the first one that is longer than `bytes_max` bytes, or is no text.
pub(crate) fn lines(mut input: impl BufRead, bytes_max: usize) -> impl Iterator<Item = Result<String>> {
    let (mut number, mut has_failed) = (0u64, false);
    std::iter::from_fn(move || {
        if has_failed {
            return None;
        }
        number += 1;
        let line = next(&mut input, bytes_max).transpose()?;
        has_failed = line.is_err();
        Some(line.with_context(|| format!("line {number} of standard input")))
    })
}

fn next(input: &mut impl BufRead, bytes_max: usize) -> Result<Option<String>> {
    let mut line = Vec::new();
    // The end of the line is one or two bytes more.
    let read_max = bytes_max as u64 + 2;
    input.by_ref().take(read_max).read_until(b'\n', &mut line).context("it cannot be read")?;
    if line.is_empty() {
        return Ok(None);
    }
    if line.last() == Some(&b'\n') {
        line.pop();
        line.pop_if(|byte| *byte == b'\r');
    }
    if line.len() > bytes_max {
        bail!("it is longer than {bytes_max} bytes, which is the limit: divide it, or send it by a program");
    }
    String::from_utf8(line).context("it is no text").map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(input: &[u8], bytes_max: usize) -> Vec<String> {
        let text =
            |line: Result<String>| line.unwrap_or_else(|error| squall_harness::terminal::error_text(&error));
        lines(input, bytes_max).map(text).collect()
    }

    #[test]
    fn lines_are_without_their_ends() {
        assert_eq!(read(b"one\ntwo\r\n\nfour", 4), ["one", "two", "", "four"]);
        assert!(read(b"", 4).is_empty());
    }

    #[test]
    fn a_line_that_is_too_long_ends_the_input() {
        let read = read(b"four\nfive!\nsix\n", 4);
        assert_eq!((read.len(), &*read[0]), (2, "four"));
        assert!(read[1].starts_with("line 2 of standard input: it is longer than 4 bytes"), "{}", read[1]);
    }

    /// Of an endless line no more than the bound is held.
    #[test]
    fn an_endless_line_is_not_read_to_its_end() {
        let endless = std::io::BufReader::new(std::io::repeat(b'x'));
        let mut lines = lines(endless, 1000);
        assert!(lines.next().is_some_and(|line| line.is_err()) && lines.next().is_none());
    }

    #[test]
    fn what_is_no_text_ends_the_input() {
        let read = read(b"\xff\nsix\n", 4);
        assert_eq!(read.len(), 1);
        assert!(read[0].contains("it is no text"), "{}", read[0]);
    }
}
