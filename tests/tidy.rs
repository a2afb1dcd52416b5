//! The rules that the tree keeps, beyond what compiler and clippy check: the direction of dependencies, headers that
//! name their paper, no stray unsafe, sizes as a ratchet, promises with witnesses. Each rule has a test beside it
//! that shows it a fault.

#[path = "tidy/dependencies.rs"]
mod dependencies;
#[path = "tidy/invariants.rs"]
mod invariants;
#[path = "tidy/sizes.rs"]
mod sizes;
#[path = "tidy/source.rs"]
mod source;
#[path = "tidy/style.rs"]
mod style;

use std::collections::BTreeSet;

use source::SourceFile;

/// Fails with all faults, one in a line.
fn assert_none(faults: &[String]) {
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
}

/// The text of the tree's file `path`.
fn text(files: &[SourceFile], path: &str) -> String {
    files.iter().find(|file| file.path == path).unwrap_or_else(|| panic!("the tree has {path}")).text.clone()
}

#[test]
fn dependencies_point_one_way() {
    assert_none(&dependencies::faults(&dependencies::edges()));
    let files = source::rust_tree();
    assert_none(&files.iter().flat_map(dependencies::faults_inside_protocols).collect::<Vec<_>>());
}

#[test]
fn files_keep_the_style() {
    assert_none(&source::tree().iter().flat_map(style::all).collect::<Vec<_>>());
}

#[test]
fn sizes_only_shrink() {
    let found = source::rust_tree().iter().flat_map(sizes::oversized).collect();
    let allowed = sizes::parse(include_str!("tidy/sizes.txt")).expect("sizes.txt can be read");
    assert_none(&sizes::compare(&found, &allowed));
}

#[test]
fn axioms_have_tests() {
    let files = source::tree();
    let axioms = invariants::stated(&text(&files, invariants::MODEL));
    assert!(axioms.contains("F1") && axioms.contains("F12") && axioms.contains("M5"), "{axioms:?}");
    assert_none(&invariants::untested(&axioms, &files));
}

#[test]
fn invariants_are_cited() {
    let files = source::tree();
    let stated = invariants::stated(&text(&files, invariants::INVARIANTS));
    assert!(stated.contains("S1") && stated.contains("O6") && stated.contains("N7"), "{stated:?}");
    assert_none(&invariants::uncited(&stated, &files));
}

#[test]
fn invariants_are_checked() {
    let files = source::tree();
    assert_none(&invariants::unchecked(&text(&files, invariants::INVARIANTS), &files));
}

#[test]
fn deviations_are_collected() {
    assert_none(&invariants::uncollected(&source::tree()));
}

#[test]
fn citations_name_what_exists() {
    let files = source::tree();
    let pages = [invariants::MODEL, invariants::INVARIANTS];
    let stated: BTreeSet<String> =
        pages.iter().flat_map(|page| invariants::stated(&text(&files, page))).collect();
    let crates = files.iter().filter(|file| file.path.starts_with("crates/"));
    assert_none(&crates.flat_map(|file| invariants::unknown(&stated, file)).collect::<Vec<_>>());
}
