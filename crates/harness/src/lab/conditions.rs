//! What a link does to the frames of one direction.

use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The conditions of one direction of a link between two hosts. The default is a link without faults.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LinkConditions {
    /// Nothing arrives.
    pub is_cut: bool,
    /// How long a frame takes.
    pub delay: Duration,
    /// At most so much longer, chosen for each frame. Frames overtake each other then.
    pub jitter: Duration,
    /// How many frames vanish.
    pub loss: Share,
    /// How many frames arrive twice.
    pub duplicates: Share,
    /// How many frames arrive with one bit changed.
    pub corruption: Share,
    /// How many frames arrive with two words of a TCP segment's payload in each other's place, which its checksum does not notice.
    pub damage: Share,
    /// How many frames are held back for [`HELD_BACK`] more, so that those behind overtake them.
    pub reordering: Share,
    /// Bits per second, with a queue of [`QUEUE`]; 0 is without a limit.
    pub rate: BitRate,
    /// Longer packets vanish without an answer, in bytes without the Ethernet header; 0 is none. (The interfaces' own MTU is that of the
    /// lab.)
    pub longest: u32,
    /// For how long the link works, and then does not, in turn; zero is always.
    pub flapping: Flapping,
}

/// How long a frame that is held back takes more than the others.
pub const HELD_BACK: Duration = Duration::from_millis(1);
/// How much a link with a limited rate queues; what comes beyond is lost.
pub const QUEUE: Duration = Duration::from_millis(100);

impl LinkConditions {
    /// Whether a link without the user-space switch can have these conditions: it works, or it does not.
    pub(crate) fn are_plain(&self) -> bool {
        Self { is_cut: false, ..*self } == Self::default()
    }
}

/// Conditions as `key=value` with commas between: `cut,delay=1ms,jitter=1ms,loss=1%,duplicate=1%,corrupt=1%,damage=1%,reorder=1%,
/// rate=10Mbit,longest=600,flap=1s/1s`; empty is without faults.
impl FromStr for LinkConditions {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut conditions = Self::default();
        for part in text.split(',').filter(|part| !part.is_empty()) {
            let (key, value) = part.split_once('=').unwrap_or((part, ""));
            match key {
                "cut" if value.is_empty() => conditions.is_cut = true,
                "delay" => conditions.delay = duration(value)?,
                "jitter" => conditions.jitter = duration(value)?,
                "loss" => conditions.loss = value.parse()?,
                "duplicate" => conditions.duplicates = value.parse()?,
                "corrupt" => conditions.corruption = value.parse()?,
                "damage" => conditions.damage = value.parse()?,
                "reorder" => conditions.reordering = value.parse()?,
                "rate" => conditions.rate = value.parse()?,
                "longest" => {
                    conditions.longest = value.parse().map_err(|_| format!("`{value}` is not a size"))?
                }
                "flap" => conditions.flapping = value.parse()?,
                _ => {
                    return Err(format!(
                        "`{part}`: write cut, or delay=1ms, jitter=, loss=1%, duplicate=, corrupt=, damage=, reorder=, rate=10Mbit, longest=600 or flap=1s/1s"
                    ));
                }
            }
        }
        Ok(conditions)
    }
}

/// A share of the frames, `0.0 <= share <= 1.0`, written in percent or as a number: `0.1%`, `0.001`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Share(pub f64);

impl FromStr for Share {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (number, scale) = text.strip_suffix('%').map_or((text, 1.0), |percent| (percent, 100.0));
        let share = number.trim().parse::<f64>().ok().map(|number| number / scale);
        let share = share.filter(|share| (0.0..=1.0).contains(share));
        share.map(Self).ok_or_else(|| format!("`{text}` is not a share: write 0.1% or 0.001"))
    }
}

/// Bits per second, with a unit: `10Mbit`, `200kbit`, `1Gbit`; 0 is without a limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct BitRate(pub u64);

impl FromStr for BitRate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let units = [("Gbit", 1e9), ("Mbit", 1e6), ("kbit", 1e3), ("bit", 1.0)];
        let split = units.iter().find_map(|(unit, scale)| Some((text.strip_suffix(unit)?, *scale)));
        let rate = split.and_then(|(number, scale)| Some(number.trim().parse::<f64>().ok()? * scale));
        let rate = rate.filter(|rate| (1.0..=1e12).contains(rate));
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "1 <= rate <= 10^12")]
        rate.map(|rate| Self(rate as u64))
            .ok_or_else(|| format!("`{text}` is not a rate: write 10Mbit or 200kbit"))
    }
}

/// For how long a link works, and for how long it then does not: `1s/500ms`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Flapping {
    /// How long it works; zero with `down` zero: always.
    pub up: Duration,
    /// How long it then does not.
    pub down: Duration,
}

impl Flapping {
    /// Whether the link is down at this time after the conditions were set.
    pub(super) fn is_down(self, elapsed: Duration) -> bool {
        let period = (self.up + self.down).as_nanos();
        !self.down.is_zero() && elapsed.as_nanos() % period >= self.up.as_nanos()
    }
}

impl FromStr for Flapping {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts = text.split_once('/').ok_or_else(|| format!("`{text}`: write UP/DOWN, as in 1s/500ms"))?;
        let flapping = Self { up: duration(parts.0)?, down: duration(parts.1)? };
        if flapping.down.is_zero() { Err(format!("`{text}`: the link is never down")) } else { Ok(flapping) }
    }
}

/// Reads a time with a unit: `1ms`, `1.5s`, `200us`.
///
/// # Errors
/// If it is none, or longer than an hour.
pub fn duration(text: &str) -> Result<Duration, String> {
    let units = [("ns", 1e-9), ("us", 1e-6), ("µs", 1e-6), ("ms", 1e-3), ("s", 1.0)];
    let split = units.iter().find_map(|(unit, scale)| Some((text.strip_suffix(unit)?, *scale)));
    let seconds = split.and_then(|(number, scale)| Some(number.trim().parse::<f64>().ok()? * scale));
    let seconds = seconds.filter(|seconds| (0.0..=3600.0).contains(seconds));
    seconds
        .map(Duration::from_secs_f64)
        .ok_or_else(|| format!("`{text}` is not a time: write 1ms, 1.5s or 200us"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_people_write_is_read() {
        assert_eq!("0.1%".parse::<Share>().unwrap(), Share(0.001));
        assert_eq!("0.25".parse::<Share>().unwrap(), Share(0.25));
        assert_eq!("10Mbit".parse::<BitRate>().unwrap(), BitRate(10_000_000));
        assert_eq!("0.5kbit".parse::<BitRate>().unwrap(), BitRate(500));
        assert_eq!(duration("1.5ms").unwrap(), Duration::from_micros(1500));
        let flapping = Flapping { up: Duration::from_secs(1), down: Duration::from_millis(500) };
        assert_eq!("1s/500ms".parse::<Flapping>().unwrap(), flapping);
    }

    #[test]
    fn conditions_are_read() {
        assert_eq!("".parse::<LinkConditions>().unwrap(), LinkConditions::default());
        let conditions: LinkConditions = "cut,delay=5ms,loss=1%,rate=10Mbit,longest=600".parse().unwrap();
        let delay = Duration::from_millis(5);
        let rate = BitRate(10_000_000);
        let expected = LinkConditions {
            is_cut: true,
            delay,
            loss: Share(0.01),
            rate,
            longest: 600,
            ..Default::default()
        };
        assert_eq!(conditions, expected);
        assert!(expected.delay == delay && !expected.are_plain());
        for text in ["cut=1", "delay", "speed=1", "loss=2"] {
            assert!(text.parse::<LinkConditions>().is_err(), "{text}");
        }
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for text in ["", "%", "101%", "-1%", "NaN", "1ms"] {
            assert!(text.parse::<Share>().is_err(), "{text}");
        }
        for text in ["", "10", "0Mbit", "-1kbit", "NaNbit", "1e30Gbit"] {
            assert!(text.parse::<BitRate>().is_err(), "{text}");
        }
        for text in ["", "1", "-1ms", "NaNs", "2e9s"] {
            assert!(duration(text).is_err(), "{text}");
        }
        for text in ["1s", "1s/", "1s/0s", "/1s"] {
            assert!(text.parse::<Flapping>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_flapping_link_is_down_in_turn() {
        let flapping: Flapping = "1s/500ms".parse().unwrap();
        let is_down = |ms| flapping.is_down(Duration::from_millis(ms));
        assert_eq!([0, 999, 1000, 1499, 1500, 2500].map(is_down), [false, false, true, true, false, true]);
        assert!(!Flapping::default().is_down(Duration::from_secs(7)));
    }
}
