//! View changes and flight records as a trace for Perfetto and Chrome's viewer (Derecho §3.4).
//!
//! [`chrome`] and [`of_records`] are pure functions to the text of a trace; write it to a file and open the file in ui.perfetto.dev or
//! `chrome://tracing`. Each member is shown as a process; each view change is a slice above the slices of its steps, each of which
//! lasts until the next step. Events of flight records are instants, and each subgroup has a lane of its messages that were measured.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use squall_fabric::Instant;
use squall_protocols::group::ViewChange;

use crate::flight_record::{self, FlightLine, FlightRecord, MessageLine};

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
        let nanos = |at: Instant| i128::from(at.as_nanos()) + track.offset_ns - origin;
        let nanos = |at| u64::try_from(nanos(at)).unwrap_or(0);
        events.push(process_name(pid, track.name));
        events.extend(
            track
                .changes
                .iter()
                .flat_map(|change| flight_record::steps(change, nanos))
                .map(|line| event(pid, &line, 0)),
        );
    }
    array(&events)
}

/// Returns the flight records of some members as a JSON array of trace events, one on each line. Times are relative to the earliest
/// event of all, by the clocks of the members' hosts; the name of each member says when that was.
///
/// ```
/// let trace = squall::trace::of_records(&[squall::FlightRecord::default()]);
/// assert!(trace.starts_with("[\n"));
/// ```
#[must_use]
pub fn of_records(records: &[FlightRecord]) -> String {
    let begins = records.iter().flat_map(|record| &record.lines).map(|line| line.unix_nanos);
    let sent = records.iter().flat_map(|record| &record.messages).map(|message| message.unix_nanos);
    let origin = begins.chain(sent).min().unwrap_or(0);
    let mut events = Vec::new();
    for (pid, record) in records.iter().enumerate() {
        let FlightRecord { node, rank, missed, lines, messages, .. } = record;
        let since = format!("{}.{:09} s since 1970", origin / 1_000_000_000, origin % 1_000_000_000);
        let earlier = if *missed > 0 { format!(", without {missed} earlier events") } else { String::new() };
        events.push(process_name(pid, &format!("rank {rank}, node {node}, from {since}{earlier}")));
        events.extend(lines.iter().map(|line| event(pid, line, origin)));
        let subgroups: BTreeSet<&str> = messages.iter().map(|message| message.subgroup.as_str()).collect();
        for (lane, subgroup) in (MESSAGES_TID..).zip(subgroups) {
            events.push(thread_name(pid, lane, &format!("messages sent to {subgroup}")));
            let own = messages.iter().filter(|message| message.subgroup == subgroup);
            events.extend(own.flat_map(|message| message_slices(pid, lane, message, origin)));
        }
    }
    array(&events)
}

/// Returns a slice for a message, and slices in it for where its time went.
fn message_slices(pid: usize, lane: usize, message: &MessageLine, origin_ns: u64) -> [Value; 4] {
    let MessageLine { index, unix_nanos, announced_nanos, stable_nanos, delivered_nanos, .. } = message;
    let slice = |name: &str, from: u64, to: u64, what: String| {
        let at = (unix_nanos - origin_ns + from) as f64 / 1000.0;
        let lasted = to.saturating_sub(from) as f64 / 1000.0;
        json!({
            "ph": "X", "name": name, "pid": pid, "tid": lane, "ts": at, "dur": lasted, "args": { "what": what }
        })
    };
    let what = |text: &str| text.to_owned();
    [
        slice("message", 0, *delivered_nanos, format!("message or null {index} of this member in the view")),
        slice("in the window", 0, *announced_nanos, what("until the polling thread announces it")),
        slice("to all members", *announced_nanos, *stable_nanos, what("until all members have it")),
        slice(
            "delivery",
            *stable_nanos,
            *delivered_nanos,
            what("until it, and what comes with it, is delivered here"),
        ),
    ]
}

fn array(events: &[Value]) -> String {
    let lines: Vec<String> = events.iter().map(Value::to_string).collect();
    format!("[\n{}\n]\n", lines.join(",\n"))
}

fn process_name(pid: usize, name: &str) -> Value {
    json!({ "ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": { "name": name } })
}

fn thread_name(pid: usize, tid: usize, name: &str) -> Value {
    json!({ "ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": { "name": name } })
}

/// The first lane of messages: the two before it have the steps of view changes, and events.
const MESSAGES_TID: usize = 2;

/// Returns a slice for what lasts, and an instant for an event. Times are microseconds, as the trace format requires.
fn event(pid: usize, line: &FlightLine, origin_ns: u64) -> Value {
    let at = (line.unix_nanos - origin_ns) as f64 / 1000.0;
    let args = json!({ "what": line.text });
    match line.lasted_nanos {
        Some(lasted) => {
            let lasted = lasted as f64 / 1000.0;
            json!({ "ph": "X", "name": line.kind, "pid": pid, "tid": 0, "ts": at, "dur": lasted, "args": args })
        }
        None => {
            json!({ "ph": "i", "s": "t", "name": line.kind, "pid": pid, "tid": 1, "ts": at, "args": args })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use squall_protocols::membership::{ViewChangeStep, ViewChangeSteps};

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
                r#"{"args":{"what":"2 members, 1 removed, 0 joined, led by this member"},"dur":4.001,"name":"to view 1","ph":"X","pid":0,"tid":0,"ts":0.0},"#,
                r#"{"args":{"what":"view 1"},"dur":0.5,"name":"suspected","ph":"X","pid":0,"tid":0,"ts":0.0},"#,
                r#"{"args":{"what":"view 1"},"dur":3.501,"name":"wedged","ph":"X","pid":0,"tid":0,"ts":0.5},"#,
                r#"{"args":{"name":"b"},"name":"process_name","ph":"M","pid":1,"tid":0},"#,
                r#"{"args":{"what":"2 members, 1 removed, 0 joined, led by this member"},"dur":0.25,"name":"to view 1","ph":"X","pid":1,"tid":0,"ts":1.0},"#,
                r#"{"args":{"what":"view 1"},"dur":0.25,"name":"wedged","ph":"X","pid":1,"tid":0,"ts":1.0}"#,
                "]",
            ]
        );
    }

    /// Members of different hosts are shown by one clock, steps as slices, and events as instants beside them.
    #[test]
    fn records_are_slices_and_instants_on_one_clock() {
        let line = |unix_nanos, lasted_nanos, kind: &str| FlightLine {
            unix_nanos,
            lasted_nanos,
            kind: kind.into(),
            text: "why".into(),
        };
        let record = |rank, lines| FlightRecord { rank, lines, ..FlightRecord::default() };
        let text = of_records(&[
            record(0, vec![line(2_000_000_005_000, Some(1500), "wedged")]),
            record(1, vec![line(2_000_000_000_000, None, "accuses")]),
        ]);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines[2],
            r#"{"args":{"what":"why"},"dur":1.5,"name":"wedged","ph":"X","pid":0,"tid":0,"ts":5.0},"#
        );
        assert!(lines[3].contains("rank 1, node 0, from 2000.000000000 s since 1970"), "{text}");
        assert_eq!(
            lines[4],
            r#"{"args":{"what":"why"},"name":"accuses","ph":"i","pid":1,"s":"t","tid":1,"ts":0.0}"#
        );
    }

    /// A message is a slice with its stages in it, which nest, in the lane of its subgroup.
    #[test]
    fn messages_are_slices_of_their_stages() {
        let message = |subgroup: &str, unix_nanos| MessageLine {
            subgroup: subgroup.into(),
            index: 9,
            unix_nanos,
            announced_nanos: 500,
            stable_nanos: 2500,
            delivered_nanos: 3000,
        };
        let messages = vec![message("log", 5000), message("a", 6000), message("log", 9000)];
        let text = of_records(&[FlightRecord { messages, ..FlightRecord::default() }]);
        let events: Vec<Value> = serde_json::from_str(&text).expect("it is JSON");
        let names = events.iter().filter(|event| event["name"] == "thread_name");
        let names: Vec<_> = names.map(|event| (&event["tid"], &event["args"]["name"])).collect();
        assert_eq!(
            names,
            [(&json!(2), &json!("messages sent to a")), (&json!(3), &json!("messages sent to log"))]
        );
        let slices = events.iter().filter(|event| event["ph"] == "X" && event["tid"] == 3);
        let slices: Vec<_> = slices.map(|event| (&event["name"], &event["ts"], &event["dur"])).collect();
        assert_eq!(
            slices[..4],
            [
                (&json!("message"), &json!(0.0), &json!(3.0)),
                (&json!("in the window"), &json!(0.0), &json!(0.5)),
                (&json!("to all members"), &json!(0.5), &json!(2.0)),
                (&json!("delivery"), &json!(2.5), &json!(0.5)),
            ]
        );
        assert_eq!(slices[4], (&json!("message"), &json!(4.0), &json!(3.0)));
    }

    #[test]
    fn a_member_without_view_changes_has_a_name_only() {
        assert_eq!(chrome(&[MemberTrack { name: "a\n", offset_ns: 0, changes: &[] }]).lines().count(), 3);
    }
}
