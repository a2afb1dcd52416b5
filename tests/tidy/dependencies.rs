//! The direction of dependencies: between crates from what cargo knows, inside `protocols` from what files name.

use std::process::Command;

use crate::source::{SourceFile, has_word, numbered, root};

/// `crate` may use `dependency`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Edge {
    pub(crate) from: String,
    pub(crate) to: String,
}

/// The edges between the crates of the workspace, of every kind (normal, build, development).
pub(crate) fn edges() -> Vec<Edge> {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    let arguments = ["metadata", "--no-deps", "--offline", "--format-version", "1"];
    let output =
        Command::new(cargo).args(arguments).current_dir(root()).output().expect("cargo can be started");
    assert!(output.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&output.stderr));
    parse(&serde_json::from_slice(&output.stdout).expect("cargo writes JSON"))
}

/// The edges in the output of `cargo metadata`.
fn parse(metadata: &serde_json::Value) -> Vec<Edge> {
    let packages = || metadata["packages"].as_array().expect("packages").iter();
    let name = |value: &serde_json::Value| value["name"].as_str().expect("a name").to_owned();
    let members: Vec<String> = packages().map(name).collect();
    let mut edges = Vec::new();
    for package in packages() {
        for dependency in package["dependencies"].as_array().expect("dependencies") {
            if members.contains(&name(dependency)) {
                edges.push(Edge { from: name(package), to: name(dependency) });
            }
        }
    }
    edges.sort();
    edges.dedup();
    edges
}

/// Edges against the direction.
pub(crate) fn faults(edges: &[Edge]) -> Vec<String> {
    let allowed = |edge: &Edge| {
        let row = ALLOWED.iter().find(|(from, _)| *from == edge.from);
        row.is_some_and(|(_, to)| to.contains(&edge.to.as_str()))
    };
    let against = edges.iter().filter(|edge| !allowed(edge));
    against.map(|edge| format!("{} must not depend on {}", edge.from, edge.to)).collect()
}

/// Uses inside `protocols` against the direction `sst ← membership ← multicast ← replica`.
pub(crate) fn faults_inside_protocols(file: &SourceFile) -> Vec<String> {
    let Some(rest) = file.path.strip_prefix("crates/protocols/src/") else { return vec![] };
    let folder = rest.split(['/', '.']).next().unwrap_or(rest);
    let Some((_, allowed)) = PROTOCOLS.iter().find(|(name, _)| *name == folder) else { return vec![] };
    let others =
        PROTOCOLS.iter().map(|(name, _)| *name).filter(|name| *name != folder && !allowed.contains(name));
    let code = file.code();
    let uses = |line: &str, name: &str| has_word(line, &format!("crate::{name}"));
    let found = others.flat_map(|name| {
        numbered(&code).filter(move |(_, line)| uses(line, name)).map(move |(n, _)| (n, name))
    });
    found.map(|(n, name)| format!("{}:{n}: {folder} must not know {name}", file.path)).collect()
}

/// What each crate may use. The figure in ARCHITECTURE.md shows the same.
const ALLOWED: [(&str, &[&str]); 10] = [
    ("squall-fabric", &[]),
    ("squall-transports", &["squall-fabric"]),
    ("squall-protocols", &["squall-fabric"]),
    ("squall-log", &[]),
    ("squall", &["squall-fabric", "squall-transports", "squall-protocols", "squall-log"]),
    ("squall-simulator", &["squall-fabric", "squall-protocols", "squall"]),
    (
        "squall-harness",
        &[
            "squall-fabric",
            "squall-transports",
            "squall-protocols",
            "squall-log",
            "squall",
            "squall-simulator",
        ],
    ),
    (
        "squall-cli",
        &["squall-fabric", "squall-transports", "squall-log", "squall", "squall-simulator", "squall-harness"],
    ),
    ("squall-python", &["squall"]),
    ("squall-capi", &["squall"]),
];

/// What each protocol may use of the others.
const PROTOCOLS: [(&str, &[&str]); 8] = [
    ("sst", &[]),
    ("membership", &["sst"]),
    ("multicast", &["sst"]),
    ("group", &["sst", "membership", "multicast", "rdmc"]),
    ("replica", &["sst", "membership", "multicast", "group", "rdmc"]),
    ("rdmc", &[]),
    ("stream", &[]),
    ("ramcast", &[]),
];

#[cfg(test)]
fn edge(from: &str, to: &str) -> Edge {
    Edge { from: from.into(), to: to.into() }
}

#[test]
fn an_edge_against_the_direction_is_refused() {
    let good = [edge("squall-protocols", "squall-fabric"), edge("squall", "squall-transports")];
    assert_eq!(faults(&good), Vec::<String>::new());
    assert_eq!(faults(&[edge("squall-protocols", "squall-transports")]).len(), 1);
    assert_eq!(faults(&[edge("squall-fabric", "squall")]).len(), 1);
    assert_eq!(
        faults(&[edge("squall-new", "squall-fabric")]).len(),
        1,
        "a crate that the table does not know"
    );
}

#[test]
fn edges_are_read_from_cargo() {
    let metadata = serde_json::json!({"packages": [
        {"name": "a", "dependencies": [{"name": "b"}, {"name": "serde"}]},
        {"name": "b", "dependencies": []},
    ]});
    assert_eq!(parse(&metadata), [edge("a", "b")]);
    assert!(
        edges().contains(&edge("squall-transports", "squall-fabric")),
        "the workspace's own edges are seen"
    );
}

#[test]
fn a_protocol_that_looks_upwards_is_refused() {
    let upwards = SourceFile::new("crates/protocols/src/sst/row.rs", "use crate::multicast::Window;");
    assert_eq!(faults_inside_protocols(&upwards).len(), 1);
    let downwards = SourceFile::new("crates/protocols/src/multicast/core.rs", "use crate::sst::Table;");
    assert_eq!(faults_inside_protocols(&downwards), Vec::<String>::new());
    let sideways = SourceFile::new("crates/protocols/src/rdmc.rs", "fn a(t: &crate::sst::Table) {}");
    assert_eq!(faults_inside_protocols(&sideways).len(), 1);
}
