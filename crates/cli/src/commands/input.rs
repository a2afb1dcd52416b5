//! Lines of standard input, none of which takes more memory than it may.

use std::io::{BufRead, Read as _};

use anyhow::{Context as _, Result, ensure};

/// Reads lines of at most `max` bytes, without their ends. After an error there are no more. Not fuzzed: any bytes are lines.
pub(crate) fn lines(mut input: impl BufRead, max: usize) -> impl Iterator<Item = Result<String>> {
    let mut is_over = false;
    std::iter::from_fn(move || {
        let line = if is_over { None } else { line(&mut input, max).transpose() };
        is_over = !matches!(line, Some(Ok(_)));
        line
    })
}

fn line(input: &mut impl BufRead, max: usize) -> Result<Option<String>> {
    let mut line = Vec::new();
    let most = max as u64 + LINE_END.len() as u64;
    let read = input.take(most).read_until(b'\n', &mut line).context("standard input cannot be read")?;
    if line.pop_if(|last| *last == b'\n').is_some() {
        line.pop_if(|last| *last == b'\r');
    }
    ensure!(line.len() <= max, "a line of standard input is longer than a message may be, {max} bytes");
    let text = String::from_utf8(line).context("standard input cannot be read as text")?;
    Ok((read > 0).then_some(text))
}

const LINE_END: &str = "\r\n";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_a_bound() {
        let all = |text: &str| lines(text.as_bytes(), 5).collect::<Result<Vec<_>>>();
        assert_eq!(all("12345\r\n\n123\n12345").unwrap(), ["12345", "", "123", "12345"]);
        assert!(all("").unwrap().is_empty());
        for text in ["123456\n", "123456", "1\n1234567890"] {
            assert!(
                all(text).unwrap_err().to_string().contains("longer than a message may be, 5 bytes"),
                "{text}"
            );
        }
        assert_eq!(lines(&b"\xff\nnext\n"[..], 5).count(), 1, "after an error there are no more");
        // Without an end: the reader takes no more than the bound.
        assert!(lines(std::io::BufReader::new(std::io::repeat(b'x')), 1 << 20).next().unwrap().is_err());
    }
}
