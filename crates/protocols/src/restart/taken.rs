//! What of a durable subgroup a member need not keep for its application (Derecho §3.4, persistent mode).

use super::flushed_log::LogStart;

/// How far a member is in a durable subgroup, in its present view, in sequences.
///
/// `delivered <= stable`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TakenCounts {
    /// The view.
    pub view: u64,
    /// One more than the sequence of the last message that this member has received.
    pub messages: u64,
    /// All members have everything below on their disks.
    pub stable: u64,
    /// This member's application has taken everything below.
    pub delivered: u64,
    /// The application has taken all messages of the views before.
    pub has_taken_before: bool,
    /// The view is on this member's disk, and so is how the one before has ended \[T8\].
    pub is_recorded: bool,
}

/// The position before which the application has taken all messages, so that all members have them on their disks; none if nothing is
/// known of that in the present view.
///
/// Of a view nothing is known before the application has taken all of the one before, and, as long as it has taken nothing there, before
/// the view is on the disk: until then the one before may end in another way. Behind the last message are nulls, which an application
/// does not take: they count when all have them.
#[must_use]
pub fn taken(counts: TakenCounts) -> Option<LogStart> {
    let TakenCounts { view, messages, stable, delivered, has_taken_before, is_recorded } = counts;
    if delivered == 0 && !has_taken_before {
        return None;
    }
    let sequence = if delivered >= messages { delivered.max(stable) } else { delivered };
    (sequence > 0 || is_recorded).then_some(LogStart { view, sequence })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All counts up to two, as far as they can be.
    fn all() -> impl Iterator<Item = TakenCounts> {
        (0..81 * 4).filter_map(|number: u64| {
            let [messages, stable, delivered] = [number % 3, number / 3 % 3, number / 9 % 3];
            let (has_taken_before, is_recorded) = (number / 27 % 2 == 1, number / 54 % 2 == 1);
            (delivered <= stable && delivered <= messages).then_some(TakenCounts {
                view: 5,
                messages,
                stable,
                delivered,
                has_taken_before,
                is_recorded,
            })
        })
    }

    /// Whether no message that the application has not taken is before the position, in this view or an earlier one.
    fn keeps(counts: TakenCounts, position: Option<LogStart>) -> bool {
        position.is_none_or(|LogStart { view, sequence }| {
            let is_behind_earlier = counts.has_taken_before || counts.delivered > 0;
            // The next message that the application takes is at `delivered`, unless it has taken all there are.
            let next = if counts.delivered < counts.messages { counts.delivered } else { u64::MAX };
            view == 5 && is_behind_earlier && sequence <= next.min(counts.stable)
        })
    }

    #[test]
    fn what_was_not_taken_is_kept() {
        assert!(all().all(|counts| keeps(counts, taken(counts))));
        let at = |sequence| Some(LogStart { view: 5, sequence });
        assert!(
            !all().all(|counts| keeps(counts, at(counts.stable))),
            "messages that wait for the application"
        );
        assert!(!all().all(|counts| keeps(counts, at(counts.delivered))), "those of the view before");
    }

    #[test]
    fn what_was_taken_is_known() {
        let counts = TakenCounts { view: 5, messages: 4, stable: 6, delivered: 3, ..TakenCounts::default() };
        let at = |sequence| Some(LogStart { view: 5, sequence });
        assert_eq!(taken(counts), at(3));
        assert_eq!(taken(TakenCounts { delivered: 4, ..counts }), at(6), "nulls are behind the last message");
        let fresh = TakenCounts { messages: 0, stable: 0, delivered: 0, has_taken_before: true, ..counts };
        assert_eq!(taken(fresh), None, "the view before may end in another way");
        assert_eq!(taken(TakenCounts { is_recorded: true, ..fresh }), at(0));
        assert_eq!(taken(TakenCounts { is_recorded: true, has_taken_before: false, ..fresh }), None);
    }
}
