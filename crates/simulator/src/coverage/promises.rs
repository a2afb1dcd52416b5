//! What each scenario must reach within the seeds that `.ci/run` runs: a snapshot in the tree, which `squall-coverage --update` writes.

use std::collections::BTreeMap;
use std::fmt::Debug;

use super::{Coverage, LogPoint, Point};

/// What a scenario must reach within the number of seeds that CI runs.
#[derive(Clone, Debug)]
pub struct Promises {
    /// Rules and branches.
    pub points: Vec<Point>,
    /// Rules and branches of the log.
    pub log_points: Vec<LogPoint>,
    /// Kinds of faults, and of other elements of its plans.
    pub faults: Vec<&'static str>,
}

impl Promises {
    /// Returns those of a scenario.
    ///
    /// # Panics
    /// If the snapshot has a line that names nothing.
    #[must_use]
    pub fn of(scenario: &str) -> Self {
        let (_, sections) = sections(SNAPSHOT);
        let mut promises = Self { points: Vec::new(), log_points: Vec::new(), faults: Vec::new() };
        for line in sections.get(scenario).into_iter().flatten() {
            match line.split_once(' ') {
                Some(("point", name)) => promises.points.push(named(Point::ALL, name)),
                Some(("log", name)) => promises.log_points.push(named(LogPoint::ALL, name)),
                Some(("fault", kind)) => promises.faults.push(kind),
                _ => panic!("promises.txt has {line:?}"),
            }
        }
        promises
    }
}

fn named<P: Copy + Debug>(all: &[P], name: &str) -> P {
    let found = all.iter().find(|point| format!("{point:?}") == name);
    *found.unwrap_or_else(|| panic!("promises.txt has {name}, and there is no such point"))
}

/// Returns a snapshot with what runs of a scenario have reached now: what at least `RUNS_MIN` of them have, and what one has if it
/// was promised before, or if no scenario promises it.
#[must_use]
pub fn updated(snapshot: &str, scenario: &str, reached: &Coverage) -> String {
    let (head, mut sections) = sections(snapshot);
    let all: Vec<&str> = sections.values().flatten().copied().collect();
    let own = sections.remove(scenario).unwrap_or_default();
    let points = reached.points.iter().map(|(point, runs)| (format!("point {point:?}"), runs));
    let log_points = reached.log_points.iter().map(|(point, runs)| (format!("log {point:?}"), runs));
    let faults = reached.faults.iter().map(|(kind, runs)| (format!("fault {kind}"), runs));
    let is_kept = |line: &str| own.contains(&line) || !all.contains(&line);
    let lines =
        points.chain(log_points).chain(faults).filter(|(line, runs)| **runs >= RUNS_MIN || is_kept(line));
    let mut lines: Vec<String> = lines.map(|(line, _)| line).collect();
    lines.sort();
    sections.insert(scenario, lines.iter().map(String::as_str).collect());
    let sections = sections.iter().map(|(name, lines)| format!("\n[{name}]\n{}\n", lines.join("\n")));
    head.to_owned() + &sections.collect::<String>()
}

/// Returns the text in front of the first section of a snapshot, and the lines of each section.
fn sections(snapshot: &str) -> (&str, BTreeMap<&str, Vec<&str>>) {
    let mut parts = snapshot.split("\n[");
    let head = parts.next().unwrap_or_default();
    let section = |part| str::split_once(part, "]\n");
    let sections = parts.filter_map(section);
    (head, sections.map(|(name, lines)| (name, lines.trim_end().lines().collect())).collect())
}

/// The snapshot of this build.
pub const SNAPSHOT: &str = include_str!("promises.txt");
/// What fewer runs reach may be missed after any change.
const RUNS_MIN: u64 = 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_scenario_has_a_section() {
        let names: Vec<_> = crate::scenarios().iter().map(|scenario| scenario.name()).collect();
        let (_, sections) = sections(SNAPSHOT);
        assert!(sections.keys().all(|name| names.contains(name)), "{names:?}");
        assert!(names.iter().all(|name| sections.contains_key(name)), "{names:?}");
    }

    #[test]
    fn an_update_adds_what_is_reached_often_and_removes_what_is_not_reached() {
        let coverage = |points: &[(Point, u64)]| Coverage {
            points: points.iter().copied().collect(),
            faults: [("join", 3)].into(),
            ..Coverage::default()
        };
        let snapshot = "Head.\n\n[a]\nfault join\npoint Admitted\npoint Decided\n\n[b]\npoint NullsSent\n";
        let reached = coverage(&[(Point::Admitted, 1), (Point::NullsSent, 9), (Point::WordsFreed, 1)]);
        let expected = "Head.\n\n[a]\nfault join\npoint Admitted\npoint WordsFreed\n\n[b]\npoint NullsSent\n";
        assert_eq!(updated(snapshot, "a", &reached), expected);
        let reached = coverage(&[(Point::NullsSent, 10)]);
        assert_eq!(updated(snapshot, "c", &reached), format!("{snapshot}\n[c]\npoint NullsSent\n"));
    }
}
