//! Lanes as a drawing in SVG, light or dark as its reader prefers.

use std::fmt::{Display, Write as _};

use squall_harness::terminal::units;

use super::axis::TimeAxis;
use super::{LaneMark, LaneSpan, MarkKind, NodeLane, RunLanes, SpanLevel};

/// The drawing.
pub(crate) fn drawing(lanes: &RunLanes) -> String {
    let axis = TimeAxis::new(instants(lanes), LEFT, WIDTH - MARGIN);
    let bottom = TOP + lanes.lanes.len() as f64 * LANE;
    let listed = listed(lanes);
    let height = bottom + LEGEND + listed.len() as f64 * LINE + MARGIN;
    let mut svg = Svg::default();
    svg.add(format_args!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" height=\"{height}\">"
    ));
    svg.add(format_args!(
        "<style>{STYLE}</style>\n<rect class=\"paper\" width=\"{WIDTH}\" height=\"{height}\"/>"
    ));
    svg.text(MARGIN, 30.0, "title", &lanes.caption.command());
    let verdict = if lanes.caption.violation.is_some() { "bad" } else { "soft" };
    svg.text(MARGIN, 50.0, verdict, &shortened(&lanes.caption.verdict()));
    for (at_ns, x) in axis.ticks(TICKS_APART) {
        svg.add(format_args!("<path class=\"grid\" d=\"M{x:.1} {} V{bottom:.1}\"/>", TOP - 6.0));
        // The last one would not fit behind its middle.
        let class = if x > WIDTH - 2.0 * MARGIN { "soft end" } else { "soft middle" };
        svg.text(x, TOP - 12.0, class, &micros(at_ns));
    }
    for (place, lane) in lanes.lanes.iter().enumerate() {
        draw_lane(&mut svg, &axis, lane, TOP + (place as f64 + 0.5) * LANE);
    }
    legend(&mut svg, lanes, bottom + 26.0);
    for (place, (lane, mark)) in listed.iter().enumerate() {
        let y = bottom + LEGEND + place as f64 * LINE;
        draw_mark(&mut svg, mark, MARGIN + 6.0, y - 4.0);
        svg.text(LEFT - 30.0, y, "soft end", &micros(mark.at_ns));
        svg.text(LEFT - 16.0, y, "", &lane.name());
        svg.text(LEFT + 110.0, y, "", &shortened(mark.text.trim_start_matches("FAULT: ")));
    }
    svg.add("</svg>");
    svg.0
}

/// The instants of all that is drawn. Notes come close together, and only those between others count.
fn instants(lanes: &RunLanes) -> Vec<u64> {
    let of_lane = |lane: &NodeLane| {
        let marks = lane.marks.iter().filter(|mark| mark.kind != MarkKind::Note).map(|mark| mark.at_ns);
        let spans = lane.spans.iter().flat_map(|span| [span.begin_ns, span.end_ns]);
        marks.chain(spans).collect::<Vec<_>>()
    };
    lanes.lanes.iter().flat_map(of_lane).chain([lanes.end_ns]).collect()
}

/// The marks that are listed below the lanes, in the order of time: faults, suspicions and ends.
fn listed(lanes: &RunLanes) -> Vec<(&NodeLane, &LaneMark)> {
    let is_listed =
        |kind| matches!(kind, MarkKind::Crash | MarkKind::Fault | MarkKind::Suspicion | MarkKind::End);
    let marks = lanes.lanes.iter().flat_map(|lane| lane.marks.iter().map(move |mark| (lane, mark)));
    let mut marks: Vec<(&NodeLane, &LaneMark)> = marks.filter(|(_, mark)| is_listed(mark.kind)).collect();
    marks.sort_by_key(|(lane, mark)| (mark.at_ns, lane.node));
    marks.truncate(LISTED_MAX);
    marks
}

fn draw_lane(svg: &mut Svg, axis: &TimeAxis, lane: &NodeLane, y: f64) {
    svg.text(MARGIN, y + 4.0, "", &lane.name());
    for span in &lane.spans {
        draw_span(svg, axis, span, y);
    }
    for span in lane.spans.iter().filter(|span| span.level == SpanLevel::Period) {
        name_view(svg, axis, span, y);
    }
    // Faults in front of the rest.
    let mut marks: Vec<&LaneMark> = lane.marks.iter().collect();
    marks.sort_by_key(|mark| std::cmp::Reverse(mark.kind));
    let mut last_note = f64::MIN;
    for mark in marks {
        let x = axis.place(mark.at_ns);
        let is_hidden = mark.kind == MarkKind::Note && (x - last_note).abs() < 2.0;
        if mark.kind == MarkKind::Note && !is_hidden {
            last_note = x;
        }
        // What ends a life is at its end; the rest leaves space for the names of views.
        let below = match mark.kind {
            MarkKind::Crash | MarkKind::End => 0.0,
            MarkKind::Note => LANE * 0.42,
            _ => VIEW / 2.0,
        };
        if !is_hidden {
            draw_mark(svg, mark, x, y + below);
        }
    }
}

fn draw_span(svg: &mut Svg, axis: &TimeAxis, span: &LaneSpan, y: f64) {
    let (left, right) = (axis.place(span.begin_ns), axis.place(span.end_ns));
    let (class, high) = match span.level {
        SpanLevel::Life => ("life", 4.0),
        SpanLevel::Period => return,
        SpanLevel::Step => {
            let step = STEPS.iter().find(|(_, name)| *name == span.name);
            (step.map_or("flow", |(class, _)| class), VIEW)
        }
    };
    let width = (right - left).max(0.5);
    let rectangle = format!(
        "<rect class=\"{class}\" x=\"{left:.1}\" y=\"{:.1}\" width=\"{width:.1}\" height=\"{high}\">",
        y - high / 2.0
    );
    svg.add(format_args!("{rectangle}{}</rect>", hint(&span.name, span.begin_ns, &span.detail)));
}

/// Writes the name of a view into its span, as far as there is space.
fn name_view(svg: &mut Svg, axis: &TimeAxis, span: &LaneSpan, y: f64) {
    let (left, right) = (axis.place(span.begin_ns), axis.place(span.end_ns));
    let number = span.name.trim_start_matches("view ");
    let fits = |text: &&str| text.chars().count() as f64 * LETTER + 10.0 <= right - left;
    if let Some(name) = [span.name.as_str(), number].iter().find(|text| fits(text)) {
        svg.text(left + 7.0, y + 2.0, "view", name);
    }
    svg.add(format_args!("<path class=\"begins\" d=\"M{left:.1} {:.1} v{VIEW}\"/>", y - VIEW / 2.0));
}

fn draw_mark(svg: &mut Svg, mark: &LaneMark, x: f64, y: f64) {
    let shape = match mark.kind {
        MarkKind::Crash => {
            format!("<path class=\"crash\" d=\"M{:.1} {:.1} l10 10 m0 -10 l-10 10\"/>", x - 5.0, y - 5.0)
        }
        MarkKind::Fault => format!("<path class=\"fault\" d=\"M{x:.1} {:.1} l5 9 h-10 z\"/>", y - 5.0),
        MarkKind::Suspicion => {
            format!("<path class=\"suspicion\" d=\"M{x:.1} {:.1} l5 5 l-5 5 l-5 -5 z\"/>", y - 5.0)
        }
        MarkKind::Loss => format!("<path class=\"loss\" d=\"M{x:.1} {:.1} l4 4 l-4 4 l-4 -4 z\"/>", y - 4.0),
        MarkKind::End => {
            format!(
                "<rect class=\"ends\" x=\"{:.1}\" y=\"{:.1}\" width=\"9\" height=\"9\"/>",
                x - 4.5,
                y - 4.5
            )
        }
        MarkKind::Note => {
            format!("<circle class=\"note\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"1.5\"/>")
        }
        // The beginning of its span.
        MarkKind::View => return,
    };
    let hint = hint(mark.kind.name(), mark.at_ns, &mark.text);
    svg.add(format_args!("<g>{shape}{hint}</g>"));
}

/// What is shown while the pointer rests on a shape.
fn hint(name: &str, at_ns: u64, detail: &str) -> String {
    let detail = if detail.is_empty() { String::new() } else { format!(": {}", escaped(detail)) };
    format!("<title>{} at {}{detail}</title>", escaped(name), micros(at_ns))
}

/// What the colours and marks mean, of those that the drawing has.
fn legend(svg: &mut Svg, lanes: &RunLanes, y: f64) {
    let mut x = LEFT;
    let spans = || lanes.lanes.iter().flat_map(|lane| &lane.spans);
    for (class, name) in STEPS.iter().filter(|(_, name)| spans().any(|span| span.name == *name)) {
        svg.add(format_args!(
            "<rect class=\"{class}\" x=\"{x:.1}\" y=\"{:.1}\" width=\"16\" height=\"10\"/>",
            y - 9.0
        ));
        svg.text(x + 21.0, y, "soft", name);
        x += 38.0 + name.len() as f64 * LETTER;
    }
    let marks = || lanes.lanes.iter().flat_map(|lane| &lane.marks);
    for kind in
        [MarkKind::Crash, MarkKind::Fault, MarkKind::Suspicion, MarkKind::Loss, MarkKind::End, MarkKind::Note]
    {
        if marks().any(|mark| mark.kind == kind) {
            draw_mark(svg, &LaneMark { at_ns: 0, kind, text: String::new() }, x + 5.0, y - 4.0);
            svg.text(x + 16.0, y, "soft", kind.name());
            x += 34.0 + kind.name().len() as f64 * LETTER;
        }
    }
    svg.text(LEFT, y + 20.0, "soft", "Time is stretched where much happens.");
}

/// The steps of a view, by the classes of their colours.
const STEPS: [(&str, &str); 4] = [
    ("opening", "opening"),
    ("flow", "messages flow"),
    ("wedged", "wedged"),
    ("decided", "next view decided"),
];

/// A time as `squall explain` prints it, but shorter.
fn micros(nanos: u64) -> String {
    let tenths = (nanos + 50) / 100;
    if tenths < 100_000 {
        return format!("{}.{} µs", units::grouped(tenths / 10), tenths % 10);
    }
    format!("{} µs", units::grouped((nanos + 500) / 1000))
}

/// A text that is as long as the drawing is wide.
fn shortened(text: &str) -> String {
    let most = ((WIDTH - LEFT - 110.0 - MARGIN) / LETTER) as usize;
    if text.chars().count() <= most {
        return text.into();
    }
    text.chars().take(most).chain(['…']).collect()
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// The text of a drawing.
#[derive(Default)]
struct Svg(String);

impl Svg {
    fn add(&mut self, line: impl Display) {
        writeln!(self.0, "{line}").expect("a String takes all");
    }

    fn text(&mut self, x: f64, y: f64, class: &str, text: &str) {
        self.add(format_args!("<text class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\">{}</text>", escaped(text)));
    }
}

const WIDTH: f64 = 1200.0;
const MARGIN: f64 = 24.0;
/// Where the lanes begin, behind their names.
const LEFT: f64 = 150.0;
/// Where the first lane begins, below the title and the axis.
const TOP: f64 = 96.0;
const LANE: f64 = 44.0;
/// The height of a view in its lane.
const VIEW: f64 = 22.0;
/// Between the lanes and the list.
const LEGEND: f64 = 84.0;
const LINE: f64 = 18.0;
/// About the width of a letter, which depends on the reader's font.
const LETTER: f64 = 6.4;
const TICKS_APART: f64 = 90.0;
/// More would be a text, which `squall explain` prints.
const LISTED_MAX: usize = 40;

const STYLE: &str = "
text { font: 12px system-ui, sans-serif; fill: #1d2530 }
.title { font-size: 16px; font-weight: 600 }
.soft { fill: #5b6675 } .bad { fill: #b3261e; font-weight: 600 } .middle { text-anchor: middle } .end { text-anchor: end }
.view { fill: #10253d; font-size: 11px }
.paper { fill: #ffffff } .grid { stroke: #e3e7ec; fill: none } .life { fill: #b4bdc8 }
.opening { fill: #cfe0f3 } .flow { fill: #86b3e0 } .wedged { fill: #f3c567 } .decided { fill: #c9aee3 }
.begins { stroke: #10253d; stroke-width: 1.5; fill: none }
.crash { stroke: #c4281c; stroke-width: 3; fill: none } .fault { fill: #c4281c; stroke: #ffffff }
.suspicion { fill: #d9740b; stroke: #ffffff } .loss { fill: #6b7684; stroke: #ffffff }
.ends { fill: #1d2530; stroke: #ffffff } .note { fill: #8a95a3 }
@media (prefers-color-scheme: dark) {
text { fill: #e4e8ee } .soft { fill: #98a3b2 } .bad { fill: #ff8a80 } .view { fill: #f2f6fb }
.paper { fill: #14181e } .grid { stroke: #2a313b } .life { fill: #4a5563 }
.opening { fill: #2d4059 } .flow { fill: #2f6cab } .wedged { fill: #96690a } .decided { fill: #6f4d94 }
.begins { stroke: #f2f6fb } .crash { stroke: #ff6b5e } .fault { fill: #ff6b5e; stroke: #14181e }
.suspicion { fill: #ffa23e; stroke: #14181e } .loss { fill: #aab4c0; stroke: #14181e }
.ends { fill: #e4e8ee; stroke: #14181e } .note { fill: #7d8896 }
}
";

#[cfg(test)]
mod tests {
    use super::super::tests::lanes_of;
    use super::*;

    /// Each node has a lane, and the drawing has both kinds of colours.
    #[test]
    fn a_drawing_has_a_lane_for_each_node() {
        let lanes = lanes_of("group", 3);
        let svg = drawing(&lanes);
        for node in 0..5 {
            assert!(svg.contains(&format!(">node {node}</text>")), "{node}: {svg}");
        }
        assert!(svg.contains("prefers-color-scheme: dark") && svg.contains("class=\"crash\""));
        assert!(svg.starts_with("<svg xmlns") && svg.ends_with("</svg>\n"));
    }

    /// The characters of a text are no markup.
    #[test]
    fn texts_are_escaped() {
        let mut lanes = lanes_of("sst", 0);
        lanes.caption.violation = Some("order: 1 < 2 & \"x\"".into());
        let svg = drawing(&lanes);
        assert!(svg.contains("violates order: 1 &lt; 2 &amp; &quot;x&quot;"), "{svg}");
        assert_eq!(svg.matches("<svg").count(), 1);
    }
}
