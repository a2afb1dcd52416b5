//! A simulated run as lanes, one for each node: the spans in which it lives, is in a view and in a step of the view, and
//! marks for what happens at an instant.

mod axis;
pub(crate) mod chrome;
pub(crate) mod svg;

use std::collections::BTreeMap;

use squall_fabric::FabricEvent;
use squall_fabric::sim::{Happening, NodeRemark, RemarkKind, TraceRecord, Verdict};

/// The lanes of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RunLanes {
    /// By node.
    lanes: Vec<NodeLane>,
    /// The time of the last record.
    end_ns: u64,
    /// What the run is and how it ends.
    caption: RunCaption,
}

/// What a run is and how it ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RunCaption {
    pub(crate) scenario: String,
    pub(crate) seed: u64,
    /// The invariant that it breaks, and how.
    pub(crate) violation: Option<String>,
}

impl RunCaption {
    fn command(&self) -> String {
        format!("squall explain {} --scenario {}", self.seed, self.scenario)
    }

    fn verdict(&self) -> String {
        self.violation.as_ref().map_or("breaks no invariant".into(), |text| format!("violates {text}"))
    }
}

/// What happens at one node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct NodeLane {
    node: u32,
    /// The number by which the remarks name the process, if it is another one than the node's.
    process: Option<String>,
    /// Each is within one of a lower level, or begins where the one before it on its level ends, or later.
    spans: Vec<LaneSpan>,
    marks: Vec<LaneMark>,
}

impl NodeLane {
    fn name(&self) -> String {
        match &self.process {
            Some(process) => format!("node {}, process {process}", self.node),
            None => format!("node {}", self.node),
        }
    }

    fn has_views(&self) -> bool {
        self.spans.iter().any(|span| span.level == SpanLevel::Period)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct LaneSpan {
    level: SpanLevel,
    name: String,
    /// begin_ns <= end_ns.
    begin_ns: u64,
    end_ns: u64,
    /// The remark with which it began.
    detail: String,
}

/// Spans of a later level are within those of an earlier one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum SpanLevel {
    /// The node lives.
    Life,
    /// The node is in a view.
    Period,
    /// The node is in a step of the view.
    Step,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct LaneMark {
    at_ns: u64,
    kind: MarkKind,
    text: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum MarkKind {
    /// The node crashes.
    Crash,
    /// Another fault of the plan.
    Fault,
    /// The node suspects another.
    Suspicion,
    /// The node loses its connections to another.
    Loss,
    /// The node opens a view.
    View,
    /// The node ends by itself.
    End,
    /// Anything else that the scenario says.
    Note,
}

impl MarkKind {
    const fn name(self) -> &'static str {
        match self {
            Self::Crash => "crash",
            Self::Fault => "fault",
            Self::Suspicion => "suspicion",
            Self::Loss => "connection lost",
            Self::View => "view",
            Self::End => "end",
            Self::Note => "note",
        }
    }
}

impl RunLanes {
    /// The lanes of a trace, whose records are in the order of time.
    pub(crate) fn new(trace: &[TraceRecord], caption: RunCaption) -> Self {
        let end_ns = trace.iter().map(|record| record.at_ns).max().unwrap_or(0);
        let mut writers: BTreeMap<u32, LaneWriter> = BTreeMap::new();
        for record in trace {
            let lane = NodeLane { node: record.node, ..NodeLane::default() };
            let writer = writers.entry(record.node);
            let writer = writer.or_insert_with(|| LaneWriter { lane, open: Vec::new(), has_died: false });
            writer.add(record);
        }
        let finish = |mut writer: LaneWriter| {
            writer.close(SpanLevel::Life, end_ns);
            writer.lane
        };
        let mut lanes: Vec<NodeLane> = writers.into_values().map(finish).collect();
        // The scenarios with views have nodes that only carry the connections of others.
        if lanes.iter().any(NodeLane::has_views) {
            lanes
                .retain(|lane| lane.has_views() || lane.marks.iter().any(|mark| mark.kind != MarkKind::Loss));
        }
        Self { lanes, end_ns, caption }
    }
}

/// A lane that is being written.
struct LaneWriter {
    lane: NodeLane,
    /// The places of the spans that have not ended, whose levels ascend.
    open: Vec<usize>,
    /// What is recorded of a process that has died does not show that it lives; it has to start again.
    has_died: bool,
}

impl LaneWriter {
    fn add(&mut self, record: &TraceRecord) {
        let at_ns = record.at_ns;
        let text = record.what.to_string();
        match &record.what {
            Happening::Fault(Verdict::Crash(_)) => {
                self.die(at_ns, text);
            }
            Happening::Fault(_) => self.mark(at_ns, MarkKind::Fault, text),
            Happening::Remark(remark) => self.add_remark(at_ns, remark),
            Happening::Note(_) => self.add_note(at_ns, &text),
            Happening::Yielded(FabricEvent::PeerLost { peer, reason }) => {
                self.live(at_ns);
                self.mark(at_ns, MarkKind::Loss, format!("loses node {}: {reason:?}", peer.0));
            }
            _ => self.live(at_ns),
        }
    }

    fn add_remark(&mut self, at_ns: u64, remark: &NodeRemark) {
        self.has_died = false;
        self.live(at_ns);
        match &remark.kind {
            RemarkKind::Suspects => self.mark(at_ns, MarkKind::Suspicion, remark.text.clone()),
            RemarkKind::Enters { period, step } => {
                let is_in_it = |span: &LaneSpan| span.level == SpanLevel::Period && span.name == *period;
                if !self.open.iter().any(|place| is_in_it(&self.lane.spans[*place])) {
                    self.mark(at_ns, MarkKind::View, remark.text.clone());
                    self.begin(SpanLevel::Period, period, at_ns, &remark.text);
                }
                self.begin(SpanLevel::Step, step, at_ns, &remark.text);
            }
            RemarkKind::Ends => {
                self.mark(at_ns, MarkKind::End, remark.text.clone());
                self.close(SpanLevel::Life, at_ns);
                self.has_died = true;
            }
        }
    }

    fn add_note(&mut self, at_ns: u64, text: &str) {
        let named = text.strip_prefix("process ").and_then(|text| text.split_once(": "));
        let (process, text) = named.map_or((None, text), |(process, text)| (Some(process), text));
        if let Some(process) = process.filter(|process| *process != self.lane.node.to_string()) {
            self.lane.process = Some(process.into());
        }
        if is_death(text) {
            self.die(at_ns, text.into());
        } else {
            self.has_died &= !is_birth(text);
            self.live(at_ns);
            self.mark(at_ns, MarkKind::Note, text.into());
        }
    }

    fn die(&mut self, at_ns: u64, text: String) {
        self.mark(at_ns, MarkKind::Crash, text);
        self.close(SpanLevel::Life, at_ns);
        self.has_died = true;
    }

    fn mark(&mut self, at_ns: u64, kind: MarkKind, text: String) {
        self.lane.marks.push(LaneMark { at_ns, kind, text });
    }

    /// The node shows that it lives.
    fn live(&mut self, at_ns: u64) {
        if self.open.is_empty() && !self.has_died {
            self.begin(SpanLevel::Life, "lives", at_ns, "");
        }
    }

    /// Begins a span, and ends those that it cannot be in.
    fn begin(&mut self, level: SpanLevel, name: &str, at_ns: u64, detail: &str) {
        self.close(level, at_ns);
        self.open.push(self.lane.spans.len());
        self.lane.spans.push(LaneSpan {
            level,
            name: name.into(),
            begin_ns: at_ns,
            end_ns: at_ns,
            detail: detail.into(),
        });
    }

    /// Ends the spans of `level` and later ones.
    fn close(&mut self, level: SpanLevel, at_ns: u64) {
        while let Some(place) = self.open.pop_if(|place| self.lane.spans[*place].level >= level) {
            self.lane.spans[place].end_ns = at_ns;
        }
    }
}

/// Whether a note says that the process dies: scenarios without a simulated network have no faults of the network.
fn is_death(note: &str) -> bool {
    note == "dies" || note.starts_with("Crash(")
}

/// Whether a note says that the process starts, for the first time or again.
fn is_birth(note: &str) -> bool {
    note == "starts" || note.starts_with("Start(")
}

#[cfg(test)]
mod tests {
    use super::*;
    use squall_simulator::scenarios;

    const LEVELS: [SpanLevel; 3] = [SpanLevel::Life, SpanLevel::Period, SpanLevel::Step];

    /// The lanes of a seed.
    pub(super) fn lanes_of(scenario: &str, seed: u64) -> RunLanes {
        let all = scenarios();
        let found = all.iter().find(|known| known.name() == scenario).unwrap();
        let run = found.explanation(seed).run;
        let violation = run.violation.map(|violation| violation.to_string());
        RunLanes::new(&run.trace, RunCaption { scenario: scenario.into(), seed, violation })
    }

    /// Checks that each span is within one of a lower level, and behind the one before it on its level.
    fn check_nesting(lane: &NodeLane) {
        let mut stack: Vec<&LaneSpan> = Vec::new();
        for span in &lane.spans {
            assert!(span.begin_ns <= span.end_ns, "{span:?}");
            while stack.last().is_some_and(|outer| outer.level >= span.level) {
                let before = stack.pop().unwrap();
                assert!(before.end_ns <= span.begin_ns, "{before:?} and {span:?}");
            }
            let outer = stack.last().copied();
            assert_eq!(outer.map(|outer| outer.level), LEVELS.into_iter().rfind(|level| *level < span.level));
            assert!(outer.is_none_or(|outer| outer.begin_ns <= span.begin_ns && span.end_ns <= outer.end_ns));
            stack.push(span);
        }
    }

    /// In run 19 of `revival` a process dies and starts again at the moment at which a step begins. No place is outside the drawing.
    #[test]
    fn the_spans_of_each_scenario_nest_and_can_be_drawn() {
        for scenario in scenarios() {
            // A run of the largest groups takes as long as hundreds of others.
            let seeds = match scenario.name() {
                "large" | "genuine-large" => 1,
                "medium" => 5,
                _ => 30,
            };
            for seed in 0..seeds {
                let lanes = lanes_of(scenario.name(), seed);
                lanes.lanes.iter().for_each(check_nesting);
                let svg = svg::drawing(&lanes);
                assert!(!svg.contains("NaN") && !svg.contains("inf\""), "{} {seed}", scenario.name());
            }
        }
    }

    /// Node 3 crashes in this run, and the others suspect each other.
    #[test]
    fn faults_suspicions_and_views_are_marks() {
        let RunLanes { lanes, .. } = lanes_of("group", 3);
        let has = |node: usize, kind| lanes[node].marks.iter().any(|mark| mark.kind == kind);
        assert!(has(3, MarkKind::Crash) && has(0, MarkKind::Suspicion) && has(0, MarkKind::Fault));
        assert!((0..4).all(|node| has(node, MarkKind::View)));
        let life = |node: usize| lanes[node].spans.iter().find(|span| span.level == SpanLevel::Life).unwrap();
        let crash = lanes[3].marks.iter().find(|mark| mark.kind == MarkKind::Crash).unwrap();
        assert_eq!(life(3).end_ns, crash.at_ns);
        let steps = |node: usize| lanes[node].spans.iter().filter(|span| span.level == SpanLevel::Step);
        let names: Vec<&str> = steps(0).map(|span| span.name.as_str()).collect();
        assert_eq!(names[..3], ["opening", "messages flow", "wedged"]);
    }

    /// Scenarios without a network say in notes that a process crashes and starts again, which is another life.
    #[test]
    fn a_process_that_starts_again_has_another_life() {
        let RunLanes { lanes, .. } = lanes_of("assembly", 3);
        let crash = lanes[1].marks.iter().find(|mark| mark.kind == MarkKind::Crash).unwrap();
        assert!(lanes[1].spans.iter().any(|span| span.end_ns == crash.at_ns), "{:?}", lanes[1]);
        let RunLanes { lanes, end_ns, .. } = lanes_of("restart", 5);
        let crashes = |lane: &NodeLane| lane.marks.iter().filter(|mark| mark.kind == MarkKind::Crash).count();
        assert!(lanes.iter().any(|lane| crashes(lane) > 1));
        for lane in &lanes {
            let lives = lane.spans.iter().filter(|span| span.level == SpanLevel::Life);
            assert_eq!(lives.filter(|life| life.end_ns < end_ns).count(), crashes(lane), "{lane:?}");
        }
    }

    /// A joiner's remarks name its process, whose number is not the node's.
    #[test]
    fn a_lane_names_the_process() {
        let RunLanes { lanes, .. } = lanes_of("join", 3);
        assert!(lanes.iter().any(|lane| lane.name() == "node 5, process 3"), "{lanes:?}");
    }
}
