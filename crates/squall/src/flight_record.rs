//! What a flight record holds, and the copy of a member's recorder that other threads read (Derecho §3.4).

use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use squall_fabric::{Instant, NodeId};
use squall_protocols::group::{FlightEvent, FlightRecorder, MessageTracks, SubgroupId, ViewChange};
use squall_protocols::membership::ViewChangeStep;
use squall_protocols::multicast::MessageTrack;

/// What a member has noticed lately.
///
/// ```
/// use squall::config::SubgroupConfig;
/// use squall::{Config, Group};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let name = format!("doc-flight-{}", std::process::id());
/// let group = Group::join(Config::local(&name, 1).subgroup("log", SubgroupConfig::default()))?;
/// let record = group.flight_record();
/// for line in &record.lines {
///     println!("{}  {}: {}", line.unix_nanos, line.kind, line.text);
/// }
/// let trace = squall::trace::of_records(&[record]); // for ui.perfetto.dev
/// assert!(trace.contains("begins view 0 of 1 members"));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct FlightRecord {
    /// The member's number as a node.
    pub node: u32,
    /// Its rank in the configuration.
    pub rank: u64,
    /// How many events there were before the first one of `lines`, which are not kept.
    pub missed: u64,
    /// The latest events and the steps of the latest view changes, in the order in which they began.
    pub lines: Vec<FlightLine>,
    /// The way of some of the latest messages that this member has sent, in the order in which they were delivered: of a hundred in a
    /// second at most for each subgroup with a total order, chosen evenly.
    pub messages: Vec<MessageLine>,
    /// Why the group has ended here, if it has.
    pub ended: Option<String>,
}

/// The way of a message of a member, in its [`FlightRecord`]: `announced <= stable <= delivered`.
///
/// ```
/// let record = squall::FlightRecord::default();
/// let slowest = record.messages.iter().max_by_key(|message| message.delivered_nanos);
/// assert_eq!(slowest, None, "none was sent yet");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct MessageLine {
    /// The name of its subgroup.
    pub subgroup: String,
    /// Its place among the messages and nulls of this member in the view, from 0.
    pub index: u64,
    /// When the application sent it, in nanoseconds since 1970 by the clock of the member's host.
    pub unix_nanos: u64,
    /// How many nanoseconds later the polling thread announced it to the others.
    pub announced_nanos: u64,
    /// How many nanoseconds after it was sent this member knew that all had it, in a durable subgroup on their disks.
    pub stable_nanos: u64,
    /// How many nanoseconds after it was sent the application had got it, with those before it, or could pull it.
    pub delivered_nanos: u64,
}

/// An event, or a step of a view change, in a [`FlightRecord`].
///
/// ```
/// let record = squall::FlightRecord::default();
/// let steps = record.lines.iter().filter_map(|line| line.lasted_nanos);
/// assert_eq!(steps.max(), None, "nothing has happened yet");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct FlightLine {
    /// When it happened or began, in nanoseconds since 1970 by the clock of the member's host.
    pub unix_nanos: u64,
    /// How long a step lasted; `None`: it is an event.
    pub lasted_nanos: Option<u64>,
    /// The kind of event, or the name of the step.
    pub kind: String,
    /// What has happened, in words.
    pub text: String,
}

/// The copy of a member's recorder that other threads read.
#[derive(Clone, Debug, Default)]
pub(crate) struct FlightCopy {
    node: Option<NodeId>,
    rank: u64,
    /// How many events the recorder had in all.
    recorded: u64,
    events: Vec<(Instant, FlightEvent)>,
    changes: Vec<ViewChange>,
    messages: Vec<(SubgroupId, MessageTrack)>,
    /// The member's clock and that of its host, at one moment.
    clocks: Option<(Instant, SystemTime)>,
    end: Option<(Instant, String)>,
    /// The subgroups' names, by id.
    names: Vec<String>,
}

impl FlightCopy {
    /// Copies what the recorder of this member has.
    pub(crate) fn copy<'c>(
        &mut self,
        (node, rank): (NodeId, Option<u64>),
        now: Instant,
        (recorder, tracks): (&FlightRecorder, &MessageTracks),
        names: &[String],
        changes: impl Iterator<Item = &'c ViewChange>,
    ) {
        // A member whose group has ended is in no view, and keeps its rank.
        (self.node, self.rank) = (Some(node), rank.unwrap_or(self.rank));
        self.clocks = Some((now, SystemTime::now()));
        self.recorded = recorder.recorded();
        self.events.clear();
        self.events.extend(recorder.events());
        self.messages.clear();
        self.messages.extend(tracks.latest());
        if self.names.len() != names.len() {
            self.names = names.to_vec();
        }
        self.changes.clear();
        self.changes.extend(changes.copied());
    }

    /// Notes why the group has ended here.
    pub(crate) fn end(&mut self, now: Instant, why: String) {
        self.end.get_or_insert((now, why));
    }

    /// Returns an event in words, with the names of subgroups instead of their ids.
    pub(crate) fn words(&self, event: &FlightEvent) -> String {
        let (FlightEvent::HeldUp(id, ..) | FlightEvent::Released(id) | FlightEvent::Trims(id, _)) = event
        else {
            return event.to_string();
        };
        match self.names.get(id.0 as usize) {
            Some(name) => event.to_string().replacen(&id.to_string(), &format!("subgroup {name}"), 1),
            None => event.to_string(),
        }
    }

    /// Returns the record in words.
    pub(crate) fn record(&self) -> FlightRecord {
        let unix = |at: Instant| {
            let Some((now, system)) = self.clocks else { return at.as_nanos() };
            let system = system.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos());
            let nanos = i128::from(at.as_nanos()) - i128::from(now.as_nanos());
            u64::try_from(i128::try_from(system).unwrap_or(i128::MAX).saturating_add(nanos)).unwrap_or(0)
        };
        let line = |at: Instant, kind: &str, text: String| FlightLine {
            unix_nanos: unix(at),
            lasted_nanos: None,
            kind: kind.into(),
            text,
        };
        let mut lines: Vec<FlightLine> = self.changes.iter().flat_map(|change| steps(change, unix)).collect();
        lines.extend(self.events.iter().map(|(at, event)| line(*at, event.name(), self.words(event))));
        if let Some((at, why)) = &self.end {
            lines.push(line(*at, "ends", why.clone()));
        }
        let messages = self.messages.iter().map(|(id, track)| {
            let after = |at: Instant| u64::try_from(at.since(track.sent).as_nanos()).unwrap_or(u64::MAX);
            MessageLine {
                subgroup: self.names.get(id.0 as usize).cloned().unwrap_or_else(|| id.to_string()),
                index: track.index,
                unix_nanos: unix(track.sent),
                announced_nanos: after(track.announced),
                stable_nanos: after(track.stable),
                delivered_nanos: after(track.delivered),
            }
        });
        // What lasts longer contains what begins with it.
        lines.sort_by_key(|line| (line.unix_nanos, std::cmp::Reverse(line.lasted_nanos)));
        FlightRecord {
            node: self.node.map_or(0, |node| node.0),
            rank: self.rank,
            missed: self.recorded - self.events.len() as u64,
            lines,
            messages: messages.collect(),
            ended: self.end.as_ref().map(|(_, why)| why.clone()),
        }
    }
}

/// Returns a view change and its steps, each of which lasts until the next one.
pub(crate) fn steps(change: &ViewChange, unix: impl Fn(Instant) -> u64) -> Vec<FlightLine> {
    let taken: Vec<(ViewChangeStep, u64)> =
        change.steps.taken().into_iter().map(|(step, at)| (step, unix(at))).collect();
    let (Some((_, first)), Some((_, last))) = (taken.first(), taken.last()) else { return Vec::new() };
    let span = |kind: &str, begin: u64, end: u64, text: String| FlightLine {
        unix_nanos: begin,
        lasted_nanos: Some(end - begin),
        kind: kind.into(),
        text,
    };
    let ViewChange { to, members, removed, joined, led, .. } = change;
    let leads = if *led { ", led by this member" } else { "" };
    let text = format!("{members} members, {removed} removed, {joined} joined{leads}");
    let mut spans = vec![span(&format!("to view {to}"), *first, *last, text)];
    for pair in taken.windows(2) {
        let [(step, begin), (_, end)] = pair else { continue };
        spans.push(span(step.name(), *begin, *end, format!("view {to}")));
    }
    spans
}

#[cfg(test)]
mod tests {
    use super::*;
    use squall_protocols::membership::ViewChangeSteps;

    fn at(micros: u64) -> Instant {
        Instant::from_nanos(micros * 1000)
    }

    fn copy() -> FlightCopy {
        let mut steps = ViewChangeSteps::default();
        steps.note(ViewChangeStep::Suspected, at(10));
        steps.note(ViewChangeStep::Wedged, at(11));
        steps.note(ViewChangeStep::Ready, at(20));
        let track =
            MessageTrack { index: 4, sent: at(12), announced: at(13), stable: at(15), delivered: at(19) };
        let change = ViewChange { to: 3, members: 2, removed: 1, joined: 0, led: true, steps };
        FlightCopy {
            node: Some(NodeId(7)),
            rank: 1,
            recorded: 9,
            events: vec![(at(10), FlightEvent::Leaves), (at(20), FlightEvent::Opens { view: 3 })],
            changes: vec![change],
            messages: vec![(SubgroupId(0), track)],
            clocks: Some((at(20), UNIX_EPOCH + std::time::Duration::from_secs(1000))),
            end: None,
            names: vec!["log".into()],
        }
    }

    /// Events and steps are in one order, by the clock of the host; the end comes last.
    #[test]
    fn a_record_is_in_the_order_of_time() {
        let mut copy = copy();
        copy.end(at(30), "a reason".into());
        copy.end(at(31), "a later one".into());
        let record = copy.record();
        let lines: Vec<(u64, &str)> =
            record.lines.iter().map(|line| (line.unix_nanos, line.kind.as_str())).collect();
        let base = 1_000_000_000_000 - 20_000;
        assert_eq!(
            lines,
            [
                (base + 10_000, "to view 3"),
                (base + 10_000, "suspected"),
                (base + 10_000, "leaves"),
                (base + 11_000, "wedged"),
                (base + 20_000, "messages flow"),
                (base + 30_000, "ends"),
            ]
        );
        assert_eq!((record.missed, record.ended.as_deref()), (7, Some("a reason")));
        let message = MessageLine {
            subgroup: "log".into(),
            index: 4,
            unix_nanos: base + 12_000,
            announced_nanos: 1000,
            stable_nanos: 3000,
            delivered_nanos: 7000,
        };
        assert_eq!(record.messages, [message]);
    }
}
