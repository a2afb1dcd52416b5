//! Rules on single files: headers that name their paper, no stray unsafe or atomics, no unfinished code, no names
//! of one machine.

use crate::errors;
use crate::source::{SourceFile, has_word, is_rust, numbered};

/// Every Rust file begins by saying what it is.
pub(crate) fn begins_with_header(file: &SourceFile) -> Vec<String> {
    if file.header().is_empty() {
        vec![format!("{}:1: begin the file with a `//!` header", file.path)]
    } else {
        vec![]
    }
}

/// A protocol's file names the paper and the section that it comes from.
pub(crate) fn names_its_paper(file: &SourceFile) -> Vec<String> {
    if !file.path.starts_with("crates/protocols/") || NOT_FROM_A_PAPER.contains(&file.path.as_str()) {
        return vec![];
    }
    let header = file.header();
    let after_paper =
        PAPERS.iter().filter_map(|paper| header.find(paper).map(|at| &header[at + paper.len()..]));
    let mut places = after_paper.flat_map(|rest| PLACES.iter().map(move |place| rest.contains(place)));
    if places.any(|found| found) {
        return vec![];
    }
    vec![format!("{}:1: name paper and section in the header, as in `(Derecho §3.4)`", file.path)]
}

/// `unsafe` stays where memory is shared with other processes or other languages.
pub(crate) fn keeps_unsafe_out(file: &SourceFile) -> Vec<String> {
    if UNSAFE_CRATES.iter().any(|folder| file.path.starts_with(folder)) {
        return vec![];
    }
    words_in_code(file, &["unsafe"], "unsafe code belongs to fabric, transports or a binding")
}

/// The crates without unsafe code say so to the compiler.
pub(crate) fn forbids_unsafe(file: &SourceFile) -> Vec<String> {
    if !SAFE_ROOTS.contains(&file.path.as_str()) || file.code().contains("#![forbid(unsafe_code)]") {
        return vec![];
    }
    vec![format!("{}:1: add `#![forbid(unsafe_code)]`", file.path)]
}

/// Atomics come through one door, so that a concurrency checker can replace them.
pub(crate) fn takes_atomics_from_fabric(file: &SourceFile) -> Vec<String> {
    if !file.path.starts_with("crates/") || file.path == "crates/fabric/src/atomics.rs" {
        return vec![];
    }
    let code = file.code();
    let lines = numbered(&code).filter(|(_, line)| has_word(line, "atomic") && line.contains("atomic::"));
    lines.map(|(n, _)| format!("{}:{n}: take atomics from `squall_fabric::atomics`", file.path)).collect()
}

/// Each acquire and each release names its partner.
pub(crate) fn pairs_its_orderings(file: &SourceFile) -> Vec<String> {
    let (code, comments) = (file.code(), file.comments());
    let comments: Vec<&str> = comments.lines().collect();
    let explained =
        |n: usize| comments[n.saturating_sub(SYNC_LINES_ABOVE)..n].iter().any(|c| c.contains("SYNC:"));
    let lines = numbered(&code).filter(|(_, line)| ORDERINGS.iter().any(|ordering| line.contains(ordering)));
    let lines = lines.filter(|(n, _)| !explained(*n));
    lines
        .map(|(n, _)| format!("{}:{n}: say `// SYNC: pairs with …` above this ordering", file.path))
        .collect()
}

/// The functions that are safe for the compiler alone are called where their rules are kept, and nowhere else.
pub(crate) fn trusts_few(file: &SourceFile) -> Vec<String> {
    let is_listed = TRUSTED.contains(&file.path.as_str()) || file.path.starts_with("crates/fabric/src/");
    if !file.path.starts_with("crates/") || is_listed {
        return vec![];
    }
    let advice =
        "keep the rule of the function of `squall_fabric::trusted`, and list this file in tests/tidy";
    words_in_code(file, &["trusted"], advice)
}

/// No unfinished code and no debugging aid.
pub(crate) fn is_finished(file: &SourceFile) -> Vec<String> {
    let code = file.code();
    let lines = numbered(&code).filter(|(_, line)| UNFINISHED.iter().any(|name| is_called(line, name)));
    lines.map(|(n, _)| format!("{}:{n}: finish this, or remove it", file.path)).collect()
}

/// What the library's threads report goes through the queue of its log: a thread that waits until a line is read would stop its member.
pub(crate) fn logs_without_waiting(file: &SourceFile) -> Vec<String> {
    let is_library = LIBRARY.iter().any(|folder| file.path.starts_with(folder));
    if !is_library || file.path.contains("/tests") || MAY_WAIT.contains(&file.path.as_str()) {
        return vec![];
    }
    let code = file.code();
    let waits = |line: &str| line.contains("tracing::") || PRINTERS.iter().any(|name| is_called(line, name));
    let lines = numbered(&code).filter(|(_, line)| waits(line));
    lines
        .map(|(n, _)| format!("{}:{n}: log by `squall_transports::log`, which never waits", file.path))
        .collect()
}

/// Names are words of the papers, not of habit.
pub(crate) fn names_are_nouns(file: &SourceFile) -> Vec<String> {
    let code = file.code();
    let lines = numbered(&code).filter(|(_, line)| line.contains("fn get_") || has_word(line, "mod utils"));
    lines.map(|(n, _)| format!("{}:{n}: no `get_` and no `utils`: say what it is", file.path)).collect()
}

/// A word has a bit for 64 members, and a group may have more: a shift by a rank is `rank % 64`, in a set that has more words.
pub(crate) fn shifts_by_no_member(file: &SourceFile) -> Vec<String> {
    if FEW_MEMBERS.contains(&file.path.as_str()) {
        return vec![];
    }
    let code = file.code();
    let lines = numbered(&code).filter(|(_, line)| MEMBERS.iter().any(|name| shifts_by(line, name)));
    let advice = "a group may have more members than a word has bits: use `RankSet`";
    lines.map(|(n, _)| format!("{}:{n}: {advice}", file.path)).collect()
}

/// A path or host of one machine means nothing on another.
pub(crate) fn names_no_machine(file: &SourceFile) -> Vec<String> {
    let paths: Vec<String> = MACHINE_FOLDERS.iter().map(|folder| format!("/{folder}/")).collect();
    let mut found = Vec::new();
    for (n, line) in numbered(&file.text) {
        if paths.iter().any(|path| begins_path(line, path)) || line.contains(&["..", "shared"].join("/")) {
            found.push(format!("{}:{n}: a path of one machine", file.path));
        }
        let hosts = line.match_indices("://").map(|(at, mark)| host(&line[at + mark.len()..]));
        for host in hosts.filter(|host| !host.is_empty() && !is_public(host)) {
            found.push(format!("{}:{n}: the host `{host}` is not on the list of public hosts", file.path));
        }
    }
    found
}

/// All rules on one file.
pub(crate) fn all(file: &SourceFile) -> Vec<String> {
    let mut found = names_no_machine(file);
    if is_rust(&file.path) {
        let rules = [
            begins_with_header,
            names_its_paper,
            keeps_unsafe_out,
            forbids_unsafe,
            takes_atomics_from_fabric,
            trusts_few,
            pairs_its_orderings,
            is_finished,
            logs_without_waiting,
            names_are_nouns,
            shifts_by_no_member,
            errors::says_causes_once,
            errors::prints_by_one_function,
        ];
        found.extend(rules.iter().flat_map(|rule| rule(file)));
    }
    found
}

fn words_in_code(file: &SourceFile, words: &[&str], advice: &str) -> Vec<String> {
    let code = file.code();
    let lines = numbered(&code).filter(|(_, line)| words.iter().any(|word| has_word(line, word)));
    lines.map(|(n, _)| format!("{}:{n}: {advice}", file.path)).collect()
}

/// Whether `line` calls the macro `name`.
fn is_called(line: &str, name: &str) -> bool {
    has_word(line, name) && line.contains(&format!("{name}!"))
}

/// Whether `line` shifts by the value of `name`, not by what is computed from it.
fn shifts_by(line: &str, name: &str) -> bool {
    let shifts = line.match_indices("<<").chain(line.match_indices(">>"));
    let rests = shifts.map(|(at, _)| line[at + 2..].trim_start_matches(['=', ' ', '*', '&']));
    let mut rests = rests.filter_map(|rest| rest.strip_prefix(name));
    rests.any(|rest| !rest.starts_with(|c: char| c.is_alphanumeric() || "_.(".contains(c)))
}

/// Whether `line` has an absolute path that begins with `path`.
fn begins_path(line: &str, path: &str) -> bool {
    let before = |at: usize| line[..at].chars().next_back();
    line.match_indices(path)
        .any(|(at, _)| !before(at).is_some_and(|c| c.is_alphanumeric() || "._-}~/<>".contains(c)))
}

/// The host that a URL's rest begins with.
fn host(rest: &str) -> &str {
    let end = rest.find(|c: char| !(c.is_alphanumeric() || ".-".contains(c))).unwrap_or(rest.len());
    rest[..end].trim_end_matches('.')
}

fn is_public(host: &str) -> bool {
    PUBLIC_HOSTS.contains(&host) || !host.contains('.')
}

const PAPERS: [&str; 5] = ["Derecho", "Spindle", "RDMC", "EXS", "RamCast"];
const PLACES: [&str; 5] = ["§", "fig. ", "Fig. ", "app. ", "Algorithm "];
/// What exists for tests alone.
const NOT_FROM_A_PAPER: [&str; 1] = ["crates/protocols/src/mutation.rs"];
const UNSAFE_CRATES: [&str; 4] = ["crates/fabric/", "crates/transports/", "crates/capi/", "crates/python/"];
const SAFE_ROOTS: [&str; 9] = [
    "crates/log/src/lib.rs",
    "crates/protocols/src/lib.rs",
    "crates/simulator/src/lib.rs",
    "crates/squall/src/lib.rs",
    "crates/dds/src/lib.rs",
    "bridge/src/lib.rs",
    "bridge/src/main.rs",
    "crates/harness/src/lib.rs",
    "crates/cli/src/main.rs",
];
/// What keeps the window rule, or keeps posted buffers from their users.
const TRUSTED: [&str; 10] = [
    "crates/protocols/src/genuine/inbox.rs",
    "crates/protocols/src/genuine/outbox.rs",
    "crates/protocols/src/multicast/subgroup.rs",
    "crates/protocols/src/multicast/walk.rs",
    "crates/protocols/src/rdmc/local/tests.rs",
    "crates/squall/src/bulk/file.rs",
    "crates/squall/src/bulk/host.rs",
    "crates/squall/src/bulk/network.rs",
    "crates/squall/src/handle/genuine.rs",
    "crates/squall/src/stream/socket.rs",
];
/// Names of the numbers of members.
const MEMBERS: [&str; 11] = [
    "rank", "node", "member", "sender", "place", "process", "provider", "peer", "leader", "reader", "writer",
];
/// What tries all sets of a few members, or has a bound of its own.
const FEW_MEMBERS: [&str; 3] = [
    "crates/protocols/src/assembly/contacts.rs",
    "crates/protocols/src/membership/cut.rs",
    "crates/simulator/src/group/health.rs",
];
const ORDERINGS: [&str; 3] = ["Ordering::Acquire", "Ordering::Release", "Ordering::AcqRel"];
/// A partner may be named in a comment of some lines.
const SYNC_LINES_ABOVE: usize = 8;
const UNFINISHED: [&str; 3] = ["todo", "unimplemented", "dbg"];
/// The crates whose code runs on polling threads.
const LIBRARY: [&str; 3] = ["crates/transports/src/", "crates/squall/src/", "crates/dds/src/"];
/// The log's own thread, and a child process of a test.
const MAY_WAIT: [&str; 2] = ["crates/transports/src/log.rs", "crates/dds/src/leases.rs"];
const PRINTERS: [&str; 4] = ["print", "println", "eprint", "eprintln"];
const MACHINE_FOLDERS: [&str; 3] = ["work", "root", "home"];
const PUBLIC_HOSTS: [&str; 12] = [
    "127.0.0.1",
    "0.0.0.0",
    "crates.io",
    "docs.rs",
    "doc.rust-lang.org",
    "doi.org",
    "github.com",
    "keepachangelog.com",
    "maven.apache.org",
    "semver.org",
    "www.apache.org",
    "www.w3.org",
];

/// Asserts that `rule` refuses `bad` and takes `good`.
#[cfg(test)]
fn assert_rule(rule: impl Fn(&SourceFile) -> Vec<String>, path: &str, bad: &str, good: &str) {
    assert_eq!(rule(&SourceFile::new(path, bad)).len(), 1, "`{bad}` has one fault");
    assert_eq!(rule(&SourceFile::new(path, good)), Vec::<String>::new(), "`{good}` has none");
}

#[test]
fn a_file_without_header_is_refused() {
    assert_rule(begins_with_header, "crates/a/src/b.rs", "// A comment.\nfn a() {}\n", "//! What it is.\n");
}

#[test]
fn a_protocol_without_paper_is_refused() {
    let path = "crates/protocols/src/sst/row.rs";
    assert_rule(names_its_paper, path, "//! Rows (Derecho).\n", "//! Rows (Derecho\n//! §3.2).\n");
    assert_rule(names_its_paper, path, "//! Rows (§3.2).\n", "//! Steps of RamCast, Algorithm 2.\n");
}

#[test]
fn stray_unsafe_is_refused() {
    let (bad, good) =
        ("fn a() { unsafe { b() } }", "#![forbid(unsafe_code)] // unsafe\nfn a() { b(\"unsafe\") }");
    assert_rule(keeps_unsafe_out, "crates/squall/src/lib.rs", bad, good);
    assert_eq!(keeps_unsafe_out(&SourceFile::new("crates/fabric/src/region.rs", bad)).len(), 0);
    assert_rule(forbids_unsafe, "crates/squall/src/lib.rs", "// #![forbid(unsafe_code)]", good);
}

#[test]
fn stray_atomics_are_refused() {
    let path = "crates/protocols/src/a.rs";
    let good = "use squall_fabric::atomics::AtomicU64;";
    assert_rule(takes_atomics_from_fabric, path, "use std::sync::atomic::AtomicU64;", good);
    assert_rule(takes_atomics_from_fabric, path, "use std::sync::{Arc, atomic::AtomicU64};", good);
}

#[test]
fn trust_beyond_the_list_is_refused() {
    let bad = "let words = squall_fabric::trusted::memory(&buffer);";
    assert_rule(trusts_few, "crates/squall/src/group.rs", bad, "// trusted by all");
    assert_eq!(trusts_few(&SourceFile::new("crates/squall/src/stream/socket.rs", bad)).len(), 0);
}

#[test]
fn an_ordering_without_partner_is_refused() {
    let (bad, good) = ("a.load(Ordering::Acquire)", "// SYNC: pairs with b.\na.load(Ordering::Acquire)");
    assert_rule(pairs_its_orderings, "crates/fabric/src/a.rs", bad, good);
}

#[test]
fn unfinished_code_is_refused() {
    assert_rule(is_finished, "crates/a/src/b.rs", "fn a() { todo!() }", "fn a() {} // todo!()");
    assert_rule(is_finished, "crates/a/src/b.rs", "fn a() { dbg!(1); }", "fn a() { not_dbg!(1); }");
}

#[test]
fn a_log_line_that_may_wait_is_refused() {
    let queued = "use squall_transports::log;\nfn a() { log::warn!(\"println!\") } // tracing::warn!";
    for bad in ["fn a() { tracing::warn!(1); }", "use tracing::warn;", "fn a() { eprintln!(\"b\"); }"] {
        assert_rule(logs_without_waiting, "crates/squall/src/b.rs", bad, queued);
        assert_eq!(logs_without_waiting(&SourceFile::new("crates/cli/src/b.rs", bad)).len(), 0, "{bad}");
    }
}

#[test]
fn habit_names_are_refused() {
    assert_rule(names_are_nouns, "crates/a/src/b.rs", "fn get_row() {}", "fn row() {}");
    assert_rule(names_are_nouns, "crates/a/src/b.rs", "mod utils;", "mod rows;");
}

#[test]
fn names_of_one_machine_are_refused() {
    let bad = format!("see {}", ["", "work", "squall"].join("/"));
    assert_rule(names_no_machine, "README.md", &bad, "see crates/network/work/rows");
    assert_rule(names_no_machine, "README.md", &["..", "shared", "a.md"].join("/"), "see docs/a.md");
    let (bad, good) =
        (format!("https{}mirror.example.net/a", "://"), "https://crates.io/crates/a, tcp://*:80");
    assert_rule(names_no_machine, "README.md", &bad, good);
}

#[test]
fn a_set_of_members_in_one_word_is_refused() {
    let path = "crates/protocols/src/a.rs";
    assert_rule(shifts_by_no_member, path, "set |= 1 << rank;", "set[rank / 64] |= 1 << (rank % 64);");
    assert_rule(
        shifts_by_no_member,
        path,
        "let is_in = set >> **provider & 1 == 1;",
        "set >> shard & 1 == 1",
    );
    assert_rule(shifts_by_no_member, path, "set <<= node", "rank - (1 << rank.ilog2())");
}
