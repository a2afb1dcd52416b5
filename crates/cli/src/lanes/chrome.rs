//! Lanes as a trace for Perfetto and Chrome's viewer: one thread for each node, whose slices nest, and an instant for each
//! mark.

use serde_json::{Value, json};

use super::{LaneMark, LaneSpan, NodeLane, RunLanes, SpanLevel};

/// The trace as JSON. Times are microseconds of virtual time.
pub(crate) fn trace(lanes: &RunLanes) -> String {
    let caption = &lanes.caption;
    let mut events = vec![json!({
        "ph": "M", "name": "process_name", "pid": PID, "tid": 0, "args": { "name": caption.command() },
    })];
    for lane in &lanes.lanes {
        let thread = thread(lane);
        for (name, args) in [
            ("thread_name", json!({ "name": lane.name() })),
            ("thread_sort_index", json!({ "sort_index": thread })),
        ] {
            events.push(json!({ "ph": "M", "name": name, "pid": PID, "tid": thread, "args": args }));
        }
        events.extend(lane.spans.iter().map(|span| slice(thread, span)));
        events.extend(lane.marks.iter().map(|mark| instant(thread, mark)));
    }
    if let Some(violation) = &caption.violation {
        events.push(json!({
            "ph": "i", "s": "g", "cat": "violation", "name": format!("violates {violation}"),
            "pid": PID, "tid": 0, "ts": micros(lanes.end_ns),
        }));
    }
    let lines: Vec<String> = events.iter().map(Value::to_string).collect();
    let about = json!({ "scenario": caption.scenario, "seed": caption.seed, "violates": caption.violation });
    format!(
        "{{\"displayTimeUnit\":\"ns\",\"otherData\":{about},\"traceEvents\":[\n{}\n]}}\n",
        lines.join(",\n")
    )
}

fn slice(thread: u64, span: &LaneSpan) -> Value {
    let kind = match span.level {
        SpanLevel::Life => "life",
        SpanLevel::Period => "view",
        SpanLevel::Step => "step",
    };
    json!({
        "ph": "X", "cat": kind, "name": span.name, "pid": PID, "tid": thread,
        "ts": micros(span.begin_ns), "dur": micros(span.end_ns - span.begin_ns), "args": { "detail": span.detail },
    })
}

fn instant(thread: u64, mark: &LaneMark) -> Value {
    json!({
        "ph": "i", "s": "t", "cat": mark.kind.name(), "name": mark.text, "pid": PID, "tid": thread,
        "ts": micros(mark.at_ns),
    })
}

/// The number of the thread: viewers hide the name of thread 0.
fn thread(lane: &NodeLane) -> u64 {
    u64::from(lane.node) + 1
}

fn micros(nanos: u64) -> f64 {
    nanos as f64 / 1000.0
}

/// All nodes are in one process, the run.
const PID: u64 = 1;

#[cfg(test)]
mod tests {
    use super::super::tests::lanes_of;
    use super::*;

    /// What a viewer needs: each slice of a thread is within the one that is open when it begins, or behind it.
    #[test]
    fn slices_nest_in_each_thread() {
        let lanes = lanes_of("group", 3);
        let trace: Value = serde_json::from_str(&trace(&lanes)).unwrap();
        let events = trace["traceEvents"].as_array().unwrap();
        for lane in &lanes.lanes {
            let of_thread = events.iter().filter(|event| event["tid"] == thread(lane));
            // Whole nanoseconds, since sums of fractions are not exact.
            let nanos = |value: &Value| (value.as_f64().unwrap() * 1000.0).round() as u64;
            let mut slices: Vec<(u64, u64)> = of_thread
                .filter(|event| event["ph"] == "X")
                .map(|event| (nanos(&event["ts"]), nanos(&event["ts"]) + nanos(&event["dur"])))
                .collect();
            assert!(slices.len() >= 3 || lane.node == 4, "{}", lane.name());
            slices.sort_by_key(|(begin, end)| (*begin, std::cmp::Reverse(*end)));
            let mut open: Vec<(u64, u64)> = Vec::new();
            for slice in slices {
                while open.last().is_some_and(|outer| outer.1 <= slice.0) {
                    open.pop();
                }
                assert!(open.last().is_none_or(|outer| slice.1 <= outer.1), "{open:?} and {slice:?}");
                open.push(slice);
            }
        }
    }

    #[test]
    fn nodes_are_threads_and_faults_are_instants() {
        let lanes = lanes_of("group", 3);
        let trace: Value = serde_json::from_str(&trace(&lanes)).unwrap();
        let events = trace["traceEvents"].as_array().unwrap();
        let is = |event: &&Value, ph: &str, cat: &str| event["ph"] == ph && event["cat"] == cat;
        for kind in ["crash", "fault", "suspicion", "view"] {
            assert!(events.iter().any(|event| is(&event, "i", kind)), "no {kind}");
        }
        let names: Vec<&Value> = events.iter().filter(|event| event["name"] == "thread_name").collect();
        assert_eq!(names.len(), lanes.lanes.len());
        assert_eq!(names[3]["args"]["name"], "node 3");
        assert_eq!(trace["otherData"]["seed"], 3);
    }

    /// A violation is an instant of the whole run.
    #[test]
    fn a_violation_is_at_the_end() {
        let mut lanes = lanes_of("sst", 0);
        lanes.caption.violation = Some("monotonic: \"a\" < b".into());
        let trace: Value = serde_json::from_str(&trace(&lanes)).unwrap();
        let last = trace["traceEvents"].as_array().unwrap().last().unwrap();
        assert_eq!((&last["s"], &last["name"]), (&"g".into(), &"violates monotonic: \"a\" < b".into()));
    }
}
