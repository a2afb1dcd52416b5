//! The direction of dependencies: the figures in ARCHITECTURE.md against what cargo knows of the crates, and against
//! what the files of `protocols` and `squall` name.

use std::collections::BTreeSet;
use std::process::Command;

use crate::source::{SourceFile, has_word, numbered, root};

/// Where the figures are.
pub(crate) const PAGE: &str = "ARCHITECTURE.md";

/// `from` uses `to`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Edge {
    pub(crate) from: String,
    pub(crate) to: String,
}

/// The arrows of a figure.
pub(crate) type Figure = BTreeSet<Edge>;

/// The figure of `page` that shows `name`: a code block with lines such as `a, b ← c`, which says that c uses a and b.
pub(crate) fn figure(page: &str, name: &str) -> Figure {
    let blocks = page.split("```").skip(1).step_by(2);
    let figures = blocks.filter(|block| block.contains('←') && has_word(block, name));
    figures.flat_map(str::lines).flat_map(arrows).collect()
}

/// The arrows of one line of a figure.
fn arrows(line: &str) -> Vec<Edge> {
    let groups: Vec<Vec<&str>> =
        line.split('←').map(|group| group.split(',').map(str::trim).collect()).collect();
    let mut edges = Vec::new();
    for pair in groups.windows(2) {
        let all = pair[0].iter().flat_map(|to| pair[1].iter().map(move |from| edge(from, to)));
        edges.extend(all);
    }
    edges
}

/// The edges between the crates of the workspace, of every kind (normal, build, development), by the names of their
/// folders.
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
                edges.push(edge(short(&name(package)), short(&name(dependency))));
            }
        }
    }
    edges.sort();
    edges.dedup();
    edges
}

/// A crate's name in the figure.
fn short(name: &str) -> &str {
    name.strip_prefix("squall-").unwrap_or(name)
}

/// The uses between the modules of the crate in `crates/FOLDER` that a figure shows, each with the place where it is.
pub(crate) fn edges_inside(folder: &str, figure: &Figure, files: &[SourceFile]) -> Vec<(Edge, String)> {
    let sources = format!("crates/{folder}/src/");
    let names: BTreeSet<&str> = figure.iter().flat_map(|edge| [&*edge.from, &*edge.to]).collect();
    let mut edges = Vec::new();
    for file in files {
        let Some(rest) = file.path.strip_prefix(&sources) else { continue };
        let module = rest.split(['/', '.']).next().unwrap_or(rest);
        let code = file.code();
        for name in names.iter().filter(|name| names.contains(module) && **name != module) {
            let uses = numbered(&code).filter(|(_, line)| has_word(line, &format!("crate::{name}")));
            edges.extend(uses.map(|(n, _)| (edge(module, name), format!("{}:{n}: ", file.path))));
        }
    }
    edges
}

/// Uses that the figure does not allow, and arrows that stand for no use. `uses` has the place of each.
pub(crate) fn faults(figure: &Figure, uses: &[(Edge, String)]) -> Vec<String> {
    let forbidden = uses.iter().filter(|(edge, _)| !is_allowed(figure, edge));
    let forbidden = forbidden.map(|(edge, place)| {
        format!("{place}`{}` must not use `{}`: no arrow in {PAGE} says so", edge.from, edge.to)
    });
    let unused = figure.iter().filter(|arrow| uses.iter().all(|(edge, _)| edge != *arrow));
    let unused = unused.map(|arrow| format!("{PAGE}: `{}` does not use `{}`", arrow.from, arrow.to));
    forbidden.chain(unused).collect()
}

/// Whether a way along the arrows leads from `edge.from` to `edge.to`.
fn is_allowed(figure: &Figure, edge: &Edge) -> bool {
    let mut reached = BTreeSet::from([&*edge.from]);
    loop {
        let next = figure.iter().filter(|arrow| reached.contains(&*arrow.from)).map(|arrow| &*arrow.to);
        let next: Vec<&str> = next.filter(|to| !reached.contains(to)).collect();
        if next.is_empty() {
            return reached.contains(&*edge.to);
        }
        reached.extend(next);
    }
}

fn edge(from: &str, to: &str) -> Edge {
    Edge { from: from.into(), to: to.into() }
}

#[cfg(test)]
fn placed(edges: &[(&str, &str)]) -> Vec<(Edge, String)> {
    edges.iter().map(|(from, to)| (edge(from, to), String::new())).collect()
}

#[test]
fn figures_are_read() {
    let page = "```\nsst ← group\n```\nText `cli ← d`.\n```\na, b  ←  c ← cli\n```\n";
    let expected = [edge("c", "a"), edge("c", "b"), edge("cli", "c")];
    assert_eq!(figure(page, "cli"), Figure::from(expected));
    assert_eq!(figure(page, "sst"), Figure::from([edge("group", "sst")]));
}

#[test]
fn a_use_that_the_figure_does_not_show_is_refused() {
    let figure = figure("```\nfabric ← protocols ← squall\n```\n", "squall");
    let all = [("protocols", "fabric"), ("squall", "protocols"), ("squall", "fabric")];
    assert_eq!(faults(&figure, &placed(&all)), Vec::<String>::new(), "a use along two arrows is allowed");
    let found = |more| faults(&figure, &placed(&[&all[..], &[more]].concat()));
    assert_eq!(found(("fabric", "squall")).len(), 1, "against the direction");
    assert_eq!(found(("new", "fabric")).len(), 1, "a crate that the figure does not show");
    assert_eq!(faults(&figure, &placed(&all[..1])), ["ARCHITECTURE.md: `squall` does not use `protocols`"]);
}

#[test]
fn edges_are_read_from_cargo() {
    let metadata = serde_json::json!({"packages": [
        {"name": "squall-a", "dependencies": [{"name": "b"}, {"name": "serde"}]},
        {"name": "b", "dependencies": []},
    ]});
    assert_eq!(parse(&metadata), [edge("a", "b")]);
    assert!(edges().contains(&edge("transports", "fabric")), "the workspace's own edges are seen");
}

#[test]
fn uses_inside_protocols_are_found() {
    let figure = figure("```\nsst ← multicast\n```\n", "sst");
    let files = [
        SourceFile::new(
            "crates/protocols/src/sst/row.rs",
            "//! crate::multicast\nuse crate::multicast::Window;",
        ),
        SourceFile::new(
            "crates/protocols/src/multicast.rs",
            "fn a(t: &crate::sst::Table, p: crate::coverage::Point) {}",
        ),
        SourceFile::new("crates/squall/src/sst.rs", "use crate::multicast::Window;"),
    ];
    let found = edges_inside("protocols", &figure, &files);
    let expected = [
        (edge("sst", "multicast"), "crates/protocols/src/sst/row.rs:2: "),
        (edge("multicast", "sst"), "crates/protocols/src/multicast.rs:1: "),
    ];
    assert_eq!(found, expected.map(|(edge, place)| (edge, place.to_owned())));
}
