//! Promises and their witnesses: each axiom of the fabric has a conformance test, each numbered invariant of the
//! protocols is cited where it is kept or checked, and nothing cites a number that does not exist.

use std::collections::BTreeSet;

use crate::source::{SourceFile, is_rust, numbered};

/// Where the axioms are stated.
pub(crate) const MODEL: &str = "crates/fabric/src/model.md";
/// Where the invariants of the protocols are stated.
pub(crate) const INVARIANTS: &str = "docs/invariants.md";
/// How the page's paragraph of invariants that no mutation breaks begins.
const NOT_MUTATED: &str = "Without a mutation";

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

/// Invariants without a mutation that the page does not list as such, or whose line names no file that checks them, and
/// names of mutations that do not exist. A mutation belongs to an invariant if its doc cites the number, or if the line
/// names it. The list is the paragraph that begins with [`NOT_MUTATED`].
pub(crate) fn unchecked(page: &str, files: &[SourceFile]) -> Vec<String> {
    let mutations: Vec<&SourceFile> =
        files.iter().filter(|file| file.path.ends_with("/mutation.rs")).collect();
    let tried: BTreeSet<String> = mutations.iter().flat_map(|file| citations(&file.text)).collect();
    let is_mutation = |name: &str| {
        mutations.iter().any(|file| file.code().lines().any(|line| line.trim() == format!("{name},")))
    };
    let checks = |path: &str, number: &str| {
        files.iter().any(|file| file.path == path && citations(&file.text).any(|cited| cited == number))
    };
    let listed = not_mutated(page);
    let mut faults = Vec::new();
    for (number, text) in items(page) {
        let names: Vec<&str> = text.split('`').skip(1).step_by(2).collect();
        let is_mutated = tried.contains(&number) || names.iter().any(|name| is_mutation(name));
        let fault = match (is_mutated, listed.contains(&number)) {
            (true, true) => "has a mutation: take it off the list of those without",
            (false, false) => "has no mutation: add one, or put it on the list of those without",
            (false, true) if !names.iter().any(|name| checks(name, &number)) => {
                "has no mutation, and its line names no file that cites and checks it"
            }
            _ => "",
        };
        faults.extend((!fault.is_empty()).then(|| format!("{INVARIANTS}: [{number}] {fault}")));
        let unknown = names.iter().filter(|name| is_camel(name) && !is_mutation(name));
        faults.extend(unknown.map(|name| format!("{INVARIANTS}: [{number}]: `{name}` is no mutation")));
    }
    faults
}

/// The numbers that the paragraph of those without a mutation lists.
fn not_mutated(page: &str) -> BTreeSet<String> {
    let paragraphs = page.split("\n\n").filter(|paragraph| paragraph.starts_with(NOT_MUTATED));
    paragraphs.flat_map(citations).collect()
}

/// Whether `name` is one of a type or a variant.
fn is_camel(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_uppercase()) && name.chars().all(|c| c.is_ascii_alphanumeric())
}

/// Ranges such as `F1–F12` or `[S1]–[S5]` that do not end with the last number of their letter; one of two letters, as
/// `[S1]–[E10]`, ends with the last number of the page.
pub(crate) fn cut_ranges(stated: &BTreeSet<String>, order: &[String], file: &SourceFile) -> Vec<String> {
    let last = |letter: &str| {
        let numbers = stated.iter().filter(|number| number.starts_with(letter));
        numbers.max_by_key(|number| number[1..].parse::<u32>().unwrap_or(0))
    };
    let mut found = Vec::new();
    for (n, line) in numbered(&file.text) {
        for (first, end) in ranges(line) {
            let expected = if first[..1] == end[..1] { last(&first[..1]) } else { order.last() };
            if let Some(expected) = expected.filter(|expected| **expected != end) {
                found.push(format!("{}:{n}: the range {first}–{end} ends at {expected}", file.path));
            }
        }
    }
    found
}

/// The ranges of numbers in `line`.
fn ranges(line: &str) -> Vec<(String, String)> {
    let brackets = |c: char| "[]\\".contains(c);
    let range = |(at, dash): (usize, &str)| {
        let before = line[..at].trim_end_matches(brackets);
        let start = before
            .rfind(|c: char| !c.is_ascii_alphanumeric())
            .map_or(0, |i| i + before[i..].chars().next().map_or(1, char::len_utf8));
        let first = number(&before[start..]).filter(|first| first.len() == before.len() - start)?;
        Some((first, number(line[at + dash.len()..].trim_start_matches(brackets))?))
    };
    line.match_indices('–').filter_map(range).collect()
}

/// The numbers that a page states, in its order.
pub(crate) fn in_order(page: &str) -> Vec<String> {
    items(page).into_iter().map(|(number, _)| number).collect()
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
    let page = "Without a mutation: [S1], [S3],\n[S4].\n\n- **[S1]** Text.\n- **[S2]** Text\n  (`Forget`).\n\
                - **[S3]** Text (`Other`, `crates/a/src/b.rs`).\n- **[S4]** Text (`crates/a/src/b.rs`).\n\
                - **[S5]** Text.\n\nAnd `Forget`.\n";
    let found = unchecked(page, &files);
    assert_eq!(found.len(), 4, "{found:?}");
    assert!(found[0].contains("[S1] has a mutation"), "{found:?}");
    assert!(found[1].contains("[S3]") && found[1].contains("no file"), "{found:?}");
    assert!(found[2].contains("`Other` is no mutation"), "{found:?}");
    assert!(found[3].contains("[S5] has no mutation"), "{found:?}");
}

#[test]
fn a_range_that_ends_too_soon_is_refused() {
    let stated = numbers(&["F1", "F2", "F14", "S1", "B9"]);
    let order = ["S1", "B9"].map(String::from);
    let faults = |text: &str| cut_ranges(&stated, &order, &SourceFile::new("a.md", text)).len();
    assert_eq!(faults("axioms F1–F14, [F1]–[F14], \\[F1\\]–\\[F14\\] and 2.3–3.5, 4–21 ms"), 0);
    assert_eq!(faults("axioms F1–F12 and\n[F1]–[F2]"), 2);
    assert_eq!((faults("[S1]–[B9]"), faults("[S1]–[F14]")), (0, 1));
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
