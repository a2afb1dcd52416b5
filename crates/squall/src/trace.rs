//! View changes as a trace for Chrome's trace viewer (Derecho §3.4).
//!
//! [`chrome`] is a pure function from the timelines of some members to the text of a trace; write it to a file and
//! open the file in `chrome://tracing`. Each member is shown as a process; each view change is a slice above the
//! slices of its steps, each of which lasts until the next step.

use serde_json::{Value, json};
use squall_protocols::group::ViewChange;
use squall_protocols::membership::ViewChangeStep;

/// One member's view changes.
///
/// ```
/// use squall::config::SubgroupConfig;
/// use squall::trace::{MemberTrack, chrome};
/// use squall::{Config, Group};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let name = format!("doc-trace-{}", std::process::id());
/// let config = Config::local(&name, 1).subgroup("log", SubgroupConfig::default());
/// let (_group, mut node) = Group::builder(config).join_polled()?;
/// while !node.is_ready() {
///     node.step();
/// }
/// let changes: Vec<_> = node.timeline().cloned().collect();
/// let track = MemberTrack { name: "member 0", offset_ns: 0, changes: &changes };
/// let trace = chrome(&[track]); // open it in ui.perfetto.dev
/// assert!(trace.contains("member 0"));
/// # Ok(())
/// # }
/// ```
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
        let name = json!({ "name": track.name });
        events.push(json!({ "ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": name }));
        for change in track.changes {
            add_change(&mut events, pid, change, track.offset_ns - origin);
        }
    }
    let lines: Vec<String> = events.iter().map(Value::to_string).collect();
    format!("[\n{}\n]\n", lines.join(",\n"))
}

fn add_change(events: &mut Vec<Value>, pid: usize, change: &ViewChange, offset_ns: i128) {
    let taken: Vec<(ViewChangeStep, i128)> = change
        .steps
        .taken()
        .into_iter()
        .map(|(step, at)| (step, i128::from(at.as_nanos()) + offset_ns))
        .collect();
    let (Some((_, first)), Some((_, last))) = (taken.first(), taken.last()) else { return };
    let ViewChange { to, members, removed, joined, led, .. } = change;
    let args = json!({ "members": members, "removed": removed, "joined": joined, "led": led });
    events.push(slice(pid, &format!("to view {to}"), *first, *last, &args));
    for pair in taken.windows(2) {
        let [(step, begin), (_, end)] = pair else { continue };
        events.push(slice(pid, step.name(), *begin, *end, &json!({})));
    }
}

fn slice(pid: usize, name: &str, begin_ns: i128, end_ns: i128, args: &Value) -> Value {
    // Microseconds, as the trace format requires.
    let (at, lasts) = (begin_ns as f64 / 1000.0, (end_ns - begin_ns) as f64 / 1000.0);
    json!({ "ph": "X", "name": name, "pid": pid, "tid": 0, "ts": at, "dur": lasts, "args": args })
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
                r#"{"args":{"name":"member \"a\""},"name":"process_name","ph":"M","pid":0,"tid":0},"#,
                r#"{"args":{"joined":0,"led":true,"members":2,"removed":1},"dur":4.001,"name":"to view 1","ph":"X","pid":0,"tid":0,"ts":0.0},"#,
                r#"{"args":{},"dur":0.5,"name":"suspected","ph":"X","pid":0,"tid":0,"ts":0.0},"#,
                r#"{"args":{},"dur":3.501,"name":"wedged","ph":"X","pid":0,"tid":0,"ts":0.5},"#,
                r#"{"args":{"name":"b"},"name":"process_name","ph":"M","pid":1,"tid":0},"#,
                r#"{"args":{"joined":0,"led":true,"members":2,"removed":1},"dur":0.25,"name":"to view 1","ph":"X","pid":1,"tid":0,"ts":1.0},"#,
                r#"{"args":{},"dur":0.25,"name":"wedged","ph":"X","pid":1,"tid":0,"ts":1.0}"#,
                "]",
            ]
        );
    }

    #[test]
    fn a_member_without_view_changes_has_a_name_only() {
        assert_eq!(chrome(&[MemberTrack { name: "a\n", offset_ns: 0, changes: &[] }]).lines().count(), 3);
    }
}
