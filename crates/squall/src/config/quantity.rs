//! Numbers with units: sizes (`10KB`, `4MiB`) and durations (`500ms`, `10s`, `1h`).

use std::time::Duration;

/// Reads a number of bytes. Without a unit it is bytes; KB, MB, GB are powers of 1000, KiB, MiB, GiB of 1024.
///
/// ```
/// use squall::config::quantity::bytes;
///
/// assert_eq!(bytes("4KiB"), Ok(4096));
/// assert!(bytes("4 potatoes").is_err());
/// ```
///
/// # Errors
/// A text that says what to write instead.
pub fn bytes(text: &str) -> Result<u64, String> {
    let unit = |unit: &str| match unit {
        "" | "B" => Some(1),
        "KB" | "kB" => Some(1_000),
        "MB" => Some(1_000_000),
        "GB" => Some(1_000_000_000),
        "KiB" => Some(1 << 10),
        "MiB" => Some(1 << 20),
        "GiB" => Some(1 << 30),
        _ => None,
    };
    quantity(text, unit).ok_or_else(|| {
        "write a number of bytes, like 512, \"10KB\" or \"4MiB\" (units: B, KB, MB, GB, KiB, MiB, GiB)".into()
    })
}

/// Reads a duration, whose unit must be written: us, ms, s, m (or min), h or d.
///
/// ```
/// use squall::config::quantity::duration;
/// use std::time::Duration;
///
/// assert_eq!(duration("500ms"), Ok(Duration::from_millis(500)));
/// ```
///
/// # Errors
/// A text that says what to write instead.
pub fn duration(text: &str) -> Result<Duration, String> {
    let unit = |unit: &str| match unit {
        "us" | "µs" => Some(1),
        "ms" => Some(1_000),
        "s" => Some(1_000_000),
        "m" | "min" => Some(60_000_000),
        "h" => Some(3_600_000_000),
        "d" => Some(86_400_000_000),
        _ => None,
    };
    let micros = quantity(text, unit);
    micros
        .map(Duration::from_micros)
        .ok_or_else(|| "write a time, like \"500ms\", \"10s\" or \"2m\" (units: us, ms, s, m, h, d)".into())
}

/// Reads a whole number and a unit, and returns their product.
fn quantity(text: &str, unit: impl Fn(&str) -> Option<u64>) -> Option<u64> {
    let text = text.trim();
    let digits = text.bytes().take_while(|byte| byte.is_ascii_digit() || *byte == b'_').count();
    let (number, name) = text.split_at(digits);
    let number: u64 = number.replace('_', "").parse().ok()?;
    number.checked_mul(unit(name.trim_start())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units() {
        for (text, expected) in [
            ("0", Some(0)),
            ("512", Some(512)),
            ("8B", Some(8)),
            ("10KB", Some(10_000)),
            ("10 kB", Some(10_000)),
            ("10KiB", Some(10_240)),
            ("1_000", Some(1_000)),
            ("16MiB", Some(16 << 20)),
            ("2GB", Some(2_000_000_000)),
            ("", None),
            ("KB", None),
            ("-1", None),
            ("1.5MB", None),
            ("10K", None),
            ("10kb", None),
            ("99999999999GiB", None),
        ] {
            assert_eq!(bytes(text).ok(), expected, "{text}");
        }
    }

    #[test]
    fn durations_have_units() {
        for (text, expected) in [
            ("500ms", Some(Duration::from_millis(500))),
            ("10 s", Some(Duration::from_secs(10))),
            ("2min", Some(Duration::from_secs(120))),
            ("2m", Some(Duration::from_secs(120))),
            ("1h", Some(Duration::from_secs(3600))),
            ("7 d", Some(Duration::from_secs(7 * 86_400))),
            ("100us", Some(Duration::from_micros(100))),
            ("10", None),
            ("s", None),
            ("10M", None),
            ("1h30m", None),
            ("99999999999d", None),
        ] {
            assert_eq!(duration(text).ok(), expected, "{text}");
        }
    }

    /// Each unit that an error offers is one.
    #[test]
    fn errors_name_the_units() {
        type Read = fn(&str) -> bool;
        let reads: [(String, Read); 2] = [
            (bytes("x").unwrap_err(), |text| bytes(text).is_ok()),
            (duration("x").unwrap_err(), |text| duration(text).is_ok()),
        ];
        for (error, reads) in reads {
            let units = error.split_once("(units: ").and_then(|(_, rest)| rest.strip_suffix(')'));
            let units = units.unwrap_or_else(|| panic!("{error}"));
            assert!(units.split(", ").all(|unit| reads(&format!("3{unit}"))), "{units}");
        }
    }
}
