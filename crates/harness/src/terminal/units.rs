//! Numbers for people: three digits and a unit, in powers of 1000.

/// A number of things per second, as in `1.23 M`.
#[must_use]
pub fn count(value: f64) -> String {
    scaled(value, &[(1e9, " G"), (1e6, " M"), (1e3, " k")])
}

/// A number of bytes, as in `9.70 GB`.
#[must_use]
pub fn bytes(value: f64) -> String {
    scaled(value, &[(1e9, " GB"), (1e6, " MB"), (1e3, " kB"), (1.0, " B")])
}

/// A time, as in `12.3 µs`.
#[must_use]
pub fn nanos(value: u64) -> String {
    scaled(value as f64, &[(1e9, " s"), (1e6, " ms"), (1e3, " µs"), (1.0, " ns")])
}

/// A whole number with its thousands apart, as in `300 000`.
#[must_use]
pub fn grouped(value: u64) -> String {
    let digits = value.to_string();
    let groups: Vec<_> =
        digits.as_bytes().rchunks(3).rev().map(|group| String::from_utf8_lossy(group)).collect();
    groups.join("\u{202f}")
}

/// A number of things, as in `1 file` and `2 000 files`.
#[must_use]
pub fn things(count: u64, name: &str) -> String {
    format!("{} {name}{}", grouped(count), if count == 1 { "" } else { "s" })
}

fn scaled(value: f64, units: &[(f64, &str)]) -> String {
    let (unit, name) =
        units.iter().copied().find(|(unit, _)| value >= *unit).unwrap_or((1.0, units_least(units)));
    let scaled = value / unit;
    match scaled {
        _ if unit == 1.0 => format!("{scaled:.0}{name}"),
        100.0.. => format!("{scaled:.0}{name}"),
        10.0.. => format!("{scaled:.1}{name}"),
        _ => format!("{scaled:.2}{name}"),
    }
}

fn units_least<'u>(units: &[(f64, &'u str)]) -> &'u str {
    units.last().filter(|(unit, _)| *unit == 1.0).map_or("", |(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_digits_and_a_unit() {
        let shown = [count(0.0), count(999.0), count(1234.0), count(45_678.0), count(2.5e6)];
        assert_eq!(shown, ["0", "999", "1.23 k", "45.7 k", "2.50 M"]);
        assert_eq!([bytes(0.0), bytes(9.7e9), bytes(512.0)], ["0 B", "9.70 GB", "512 B"]);
        assert_eq!(
            [nanos(0), nanos(512), nanos(1730), nanos(250_000_000)],
            ["0 ns", "512 ns", "1.73 µs", "250 ms"]
        );
        assert_eq!(
            [things(0, "file"), things(1, "file"), things(12, "file")],
            ["0 files", "1 file", "12 files"]
        );
        assert_eq!(
            [grouped(0), grouped(1000), grouped(1_234_567)],
            ["0", "1\u{202f}000", "1\u{202f}234\u{202f}567"]
        );
    }
}
