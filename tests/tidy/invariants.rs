//! Promises and their witnesses: each axiom of the fabric has a conformance test, each numbered invariant of the
//! protocols is cited where it is kept or checked, and nothing cites a number that does not exist.

use std::collections::BTreeSet;

use crate::source::{SourceFile, is_rust, numbered};

/// Where the axioms are stated.
pub(crate) const MODEL: &str = "crates/fabric/src/model.md";
/// Where the invariants of the protocols are stated.
pub(crate) const INVARIANTS: &str = "docs/invariants.md";

/// The numbers that a page states: list items that begin with `**F1 …` or `**[S1]**`.
pub(crate) fn stated(page: &str) -> BTreeSet<String> {
    let items = page.lines().filter_map(|line| line.strip_prefix("- **"));
    items.filter_map(|item| number(item.trim_start_matches('['))).collect()
}

/// Axioms without a test in the conformance suite: a function whose name begins with the axiom's number.
pub(crate) fn untested(axioms: &BTreeSet<String>, files: &[SourceFile]) -> Vec<String> {
    let suite = files.iter().filter(|file| file.path.starts_with("crates/fabric/src/conformance"));
    let code: String = suite.map(SourceFile::code).collect();
    let missing = axioms.iter().filter(|axiom| !code.contains(&format!("fn {}_", axiom.to_lowercase())));
    missing
        .map(|axiom| format!("{MODEL}: {axiom} has no test `{}_…` in the suite", axiom.to_lowercase()))
        .collect()
}

/// Invariants that no file of the crates cites as `[S1]`.
pub(crate) fn uncited(invariants: &BTreeSet<String>, files: &[SourceFile]) -> Vec<String> {
    let crates = files.iter().filter(|file| file.path.starts_with("crates/"));
    let cited: BTreeSet<String> = crates.flat_map(|file| citations(&file.text)).collect();
    let missing = invariants.difference(&cited);
    missing.map(|invariant| format!("{INVARIANTS}: nothing in crates/ cites [{invariant}]")).collect()
}

/// Invariants that have no mutation, and whose line on the page names no file that checks them. A mutation belongs to an
/// invariant if its doc cites the number, or if the line names it.
pub(crate) fn unchecked(page: &str, files: &[SourceFile]) -> Vec<String> {
    let mutations: Vec<&SourceFile> =
        files.iter().filter(|file| file.path.ends_with("/mutation.rs")).collect();
    let tried: BTreeSet<String> = mutations.iter().flat_map(|file| citations(&file.text)).collect();
    let is_mutation = |name: &str| {
        mutations.iter().any(|file| file.code().lines().any(|line| line.trim() == format!("{name},")))
    };
    let checks = |path: &str, number: &String| {
        files.iter().any(|file| file.path == path && citations(&file.text).any(|cited| cited == *number))
    };
    let is_checked = |(number, text): &(String, String)| {
        let names = || text.split('`').skip(1).step_by(2);
        tried.contains(number) || names().any(|name| is_mutation(name) || checks(name, number))
    };
    let missing = items(page).into_iter().filter(|item| !is_checked(item));
    missing
        .map(|(number, _)| {
            format!("{INVARIANTS}: [{number}] has no mutation, and its line names no file that cites and checks it")
        })
        .collect()
}

/// The numbers that a page states, each with its text.
fn items(page: &str) -> Vec<(String, String)> {
    let mut items: Vec<(String, String)> = Vec::new();
    let mut is_open = false;
    for line in page.lines() {
        let stated = line.strip_prefix("- **").and_then(|item| number(item.trim_start_matches('[')));
        is_open = stated.is_some() || (is_open && line.starts_with("  "));
        items.extend(stated.map(|number| (number, String::new())));
        if let Some((_, text)) = items.last_mut().filter(|_| is_open) {
            text.push_str(line);
            text.push('\n');
        }
    }
    items
}

/// Citations in comments of numbers that no page states, though it states others of that letter.
pub(crate) fn unknown(stated: &BTreeSet<String>, file: &SourceFile) -> Vec<String> {
    let text = if is_rust(&file.path) { file.comments() } else { file.text.clone() };
    let letters: BTreeSet<&str> = stated.iter().map(|number| &number[..1]).collect();
    let mut found = Vec::new();
    for (n, line) in numbered(&text) {
        for citation in citations(line).filter(|c| letters.contains(&c[..1]) && !stated.contains(c)) {
            found.push(format!("{}:{n}: [{citation}] is not stated anywhere", file.path));
        }
    }
    found
}

/// Files of the crates with a line `Deviation:` that no page under docs/papers/ and not ARCHITECTURE.md names.
pub(crate) fn uncollected(files: &[SourceFile]) -> Vec<String> {
    let is_page = |path: &str| path == "ARCHITECTURE.md" || path.starts_with("docs/papers/");
    let pages: String =
        files.iter().filter(|file| is_page(&file.path)).map(|file| file.text.as_str()).collect();
    let deviates =
        |file: &&SourceFile| file.path.starts_with("crates/") && file.comments().contains("Deviation:");
    let files = files.iter().filter(|file| is_rust(&file.path)).filter(deviates);
    let forgotten = files.filter(|file| !pages.contains(&format!("`{}`", file.path)));
    forgotten
        .map(|file| format!("{}: name its deviation in docs/papers/ or ARCHITECTURE.md", file.path))
        .collect()
}

/// The numbers that `text` cites: `[F3]`, or `\[F3\]` where rustdoc reads it.
fn citations(text: &str) -> impl Iterator<Item = String> {
    text.match_indices('[').filter_map(|(at, _)| {
        let found = number(&text[at + 1..])?;
        let rest = &text[at + 1 + found.len()..];
        (rest.starts_with(']') || rest.starts_with("\\]")).then_some(found)
    })
}

/// The number that `text` begins with: a capital letter, digits, perhaps a small letter.
fn number(text: &str) -> Option<String> {
    let mut rest = text.chars();
    let letter = rest.next().filter(char::is_ascii_uppercase)?;
    let digits: String = rest.as_str().chars().take_while(char::is_ascii_digit).collect();
    let after = rest.as_str()[digits.len()..].chars().next();
    let small = after.filter(char::is_ascii_lowercase).map(String::from).unwrap_or_default();
    (!digits.is_empty()).then(|| format!("{letter}{digits}{small}"))
}

#[cfg(test)]
fn numbers(list: &[&str]) -> BTreeSet<String> {
    list.iter().map(ToString::to_string).collect()
}

#[test]
fn numbers_are_read_from_a_page() {
    let page = "# Title\n- **F1 order.** Text.\n- **[S2]** Text, as in **[S9]**.\n- **Note.** Text.\n";
    assert_eq!(stated(page), numbers(&["F1", "S2"]));
}

#[test]
fn an_axiom_without_test_is_refused() {
    let suite = |text| [SourceFile::new("crates/fabric/src/conformance/order.rs", text)];
    let axioms = numbers(&["F1", "F12"]);
    assert_eq!(
        untested(&axioms, &suite("pub fn f1_order() {}\npub fn f12_progress() {}")),
        Vec::<String>::new()
    );
    assert_eq!(untested(&axioms, &suite("pub fn f12_progress() {} // fn f1_order")).len(), 1);
}

#[test]
fn an_invariant_without_citation_is_refused() {
    let file = |text| [SourceFile::new("crates/protocols/src/sst/row.rs", text)];
    assert_eq!(uncited(&numbers(&["S1", "O2"]), &file("// Kept here [S1], \\[O2\\].")), Vec::<String>::new());
    assert_eq!(uncited(&numbers(&["S1"]), &file("// [S12] and S1")).len(), 1);
}

#[test]
fn an_invariant_that_nothing_checks_is_refused() {
    let mutations = "/// \\[S1\\] It goes back.\nGoBack,\n/// It forgets.\nForget,\n";
    let files = [
        SourceFile::new("crates/protocols/src/mutation.rs", mutations),
        SourceFile::new("crates/a/src/b.rs", "// Checks [S4].\n"),
    ];
    let page = "- **[S1]** Text.\n- **[S2]** Text\n  (`Forget`).\n- **[S3]** Text (`Other`, `crates/a/src/b.rs`).\n\
                - **[S4]** Text (`crates/a/src/b.rs`).\n- **[S5]** Text.\n\nAnd `Forget`.\n";
    let found = unchecked(page, &files);
    assert_eq!(found.len(), 2, "{found:?}");
    assert!(found[0].contains("[S3]") && found[1].contains("[S5]"), "{found:?}");
}

#[test]
fn a_deviation_that_no_page_names_is_refused() {
    let code = SourceFile::new("crates/protocols/src/sst/mod.rs", "//! `Deviation:` Derecho pushes rows.\n");
    assert_eq!(uncollected(std::slice::from_ref(&code)).len(), 1);
    let page = SourceFile::new("docs/papers/derecho.md", "| `crates/protocols/src/sst/mod.rs` |");
    assert_eq!(uncollected(&[code, page]), Vec::<String>::new());
}

#[test]
fn a_citation_of_nothing_is_refused() {
    let file = SourceFile::new("crates/a/src/b.rs", "//! Keeps [S9], [S1] and [V4].\nlet a = [S9];\n");
    assert_eq!(unknown(&numbers(&["S1"]), &file), ["crates/a/src/b.rs:1: [S9] is not stated anywhere"]);
}
