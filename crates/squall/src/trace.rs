//! View changes as a trace for Chrome's trace viewer (Derecho §3.4).
//!
//! [`chrome`] is a pure function from the timelines of some members to the text of a trace; write it to a file and
//! open the file in `chrome://tracing`. Each member is shown as a process; each view change is a slice above the
//! slices of its steps, each of which lasts until the next step.

use std::fmt::Write as _;

use squall_protocols::group::ViewChange;
use squall_protocols::membership::ViewChangeStep;

/// One member's view changes.
#[derive(Clone, Copy, Debug)]
pub struct MemberTrack<'a> {
    /// The member's name.
    pub name: &'a str,
    /// The offset in nanoseconds that converts the member's instants to a clock that all members share.
    pub offset_ns: i128,
    /// Its view changes, as [`squall_protocols::group::GroupCore::timeline`] yields them.
    pub changes: &'a [ViewChange],
}

/// Returns a JSON array of trace events, one on each line. Times are relative to the earliest step of all.
#[must_use]
pub fn chrome(tracks: &[MemberTrack<'_>]) -> String {
    let instants = |track: &MemberTrack<'_>| {
        let steps = track.changes.iter().flat_map(|change| change.steps.taken());
        steps.map(|(_, at)| i128::from(at.as_nanos()) + track.offset_ns).min()
    };
    let origin = tracks.iter().filter_map(instants).min().unwrap_or(0);
    let mut events = Vec::new();
    for (pid, track) in tracks.iter().enumerate() {
        let name = quoted(track.name);
        events.push(format!(
            r#"{{"ph":"M","name":"process_name","pid":{pid},"tid":0,"args":{{"name":{name}}}}}"#
        ));
        for change in track.changes {
            add_change(&mut events, pid, change, track.offset_ns - origin);
        }
    }
    format!("[\n{}\n]\n", events.join(",\n"))
}

fn add_change(events: &mut Vec<String>, pid: usize, change: &ViewChange, offset_ns: i128) {
    let taken: Vec<(ViewChangeStep, i128)> = change
        .steps
        .taken()
        .into_iter()
        .map(|(step, at)| (step, i128::from(at.as_nanos()) + offset_ns))
        .collect();
    let (Some((_, first)), Some((_, last))) = (taken.first(), taken.last()) else { return };
    let ViewChange { to, members, removed, joined, led, .. } = change;
    let args = format!(r#"{{"members":{members},"removed":{removed},"joined":{joined},"led":{led}}}"#);
    events.push(slice(pid, &format!("to view {to}"), *first, *last, &args));
    for pair in taken.windows(2) {
        let [(step, begin), (_, end)] = pair else { continue };
        events.push(slice(pid, step.name(), *begin, *end, "{}"));
    }
}

fn slice(pid: usize, name: &str, begin_ns: i128, end_ns: i128, args: &str) -> String {
    let (at, lasts) = (micros(begin_ns), micros(end_ns - begin_ns));
    format!(r#"{{"ph":"X","name":"{name}","pid":{pid},"tid":0,"ts":{at},"dur":{lasts},"args":{args}}}"#)
}

/// Formats a time in microseconds, as the trace format requires.
fn micros(nanos: i128) -> String {
    format!("{}.{:03}", nanos / 1000, nanos % 1000)
}

/// Returns `text` as a JSON string.
fn quoted(text: &str) -> String {
    let mut quoted = String::from('"');
    for char in text.chars() {
        match char {
            '"' | '\\' => quoted.extend(['\\', char]),
            char if u32::from(char) < 0x20 => {
                let _ = write!(quoted, "\\u{:04x}", u32::from(char));
            }
            char => quoted.push(char),
        }
    }
    quoted.push('"');
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;
    use squall_fabric::Instant;
    use squall_protocols::membership::ViewChangeSteps;

    fn change(to: u64, steps: &[(ViewChangeStep, u64)]) -> ViewChange {
        let mut taken = ViewChangeSteps::default();
        steps.iter().for_each(|(step, at)| taken.note(*step, Instant::from_nanos(*at)));
        ViewChange { to, members: 2, removed: 1, joined: 0, led: true, steps: taken }
    }

    /// The steps of two members whose clocks differ are put in one order.
    #[test]
    fn steps_are_slices_on_one_clock() {
        let first = [change(
            1,
            &[
                (ViewChangeStep::Suspected, 5_000),
                (ViewChangeStep::Wedged, 5_500),
                (ViewChangeStep::Ready, 9_001),
            ],
        )];
        let second = [change(1, &[(ViewChangeStep::Wedged, 1_000), (ViewChangeStep::Decided, 1_250)])];
        let text = chrome(&[
            MemberTrack { name: "member \"a\"", offset_ns: 0, changes: &first },
            MemberTrack { name: "b", offset_ns: 5_000, changes: &second },
        ]);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines,
            [
                "[",
                r#"{"ph":"M","name":"process_name","pid":0,"tid":0,"args":{"name":"member \"a\""}},"#,
                r#"{"ph":"X","name":"to view 1","pid":0,"tid":0,"ts":0.000,"dur":4.001,"args":{"members":2,"removed":1,"joined":0,"led":true}},"#,
                r#"{"ph":"X","name":"suspected","pid":0,"tid":0,"ts":0.000,"dur":0.500,"args":{}},"#,
                r#"{"ph":"X","name":"wedged","pid":0,"tid":0,"ts":0.500,"dur":3.501,"args":{}},"#,
                r#"{"ph":"M","name":"process_name","pid":1,"tid":0,"args":{"name":"b"}},"#,
                r#"{"ph":"X","name":"to view 1","pid":1,"tid":0,"ts":1.000,"dur":0.250,"args":{"members":2,"removed":1,"joined":0,"led":true}},"#,
                r#"{"ph":"X","name":"wedged","pid":1,"tid":0,"ts":1.000,"dur":0.250,"args":{}}"#,
                "]",
            ]
        );
    }

    #[test]
    fn a_member_without_view_changes_has_a_name_only() {
        assert_eq!(chrome(&[MemberTrack { name: "a\n", offset_ns: 0, changes: &[] }]).lines().count(), 3);
    }
}
