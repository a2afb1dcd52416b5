//! Parsers of foreign bytes: code that turns bytes of a socket, a file or a peer into values names the fuzz entry that
//! covers it, and every fuzz entry covers some code.

use std::collections::BTreeSet;

use crate::source::{SourceFile, is_rust, numbered};

/// Where the list of fuzz entries is.
pub(crate) const ENTRIES: &str = "fuzz/src/lib.rs";
/// Where the fuzz targets are declared.
const MANIFEST: &str = "fuzz/Cargo.toml";

/// The names of the fuzz entries: `Parser { name: "address", … }`.
pub(crate) fn entries(list: &str) -> BTreeSet<String> {
    let named = list.split("Parser { name: \"").skip(1);
    named.filter_map(|rest| rest.split_once('"')).map(|(name, _)| name.to_owned()).collect()
}

/// Parsers in `file` that name no fuzz entry.
///
/// A function that other files can call, whose name begins like that of a parser, and which takes bytes, words or text,
/// needs a marker in its comment: ``Fuzzed as `name`.`` or `Not fuzzed: reason`. A file with any other such function, or
/// with a call of a decoder, needs one somewhere.
pub(crate) fn unmarked(file: &SourceFile) -> Vec<String> {
    if !takes_foreign_bytes(&file.path) {
        return vec![];
    }
    let code = production(&file.code()).to_owned();
    let comments = file.comments();
    let comments: Vec<&str> = comments.lines().collect();
    let mut found = Vec::new();
    let mut first = None;
    for (n, line) in numbered(&code) {
        let parses = parser(&code, n);
        if parses || DECODERS.iter().any(|decoder| line.contains(decoder)) {
            first.get_or_insert(n);
        }
        if parses && line.trim_start().starts_with("pub") && !is_marked(&comment_above(&code, &comments, n)) {
            found.push(format!("{}:{n}: {ADVICE}", file.path));
        }
    }
    if let Some(n) = first.filter(|_| found.is_empty() && !is_marked(&comments.join("\n"))) {
        found.push(format!("{}:{n}: {ADVICE}", file.path));
    }
    found
}

/// Markers that name no entry, and entries that no marker names or that cargo-fuzz does not know.
pub(crate) fn mismatches(entries: &BTreeSet<String>, files: &[SourceFile]) -> Vec<String> {
    let mut faults = Vec::new();
    let mut covered = BTreeSet::new();
    for file in files.iter().filter(|file| takes_foreign_bytes(&file.path)) {
        for (n, line) in numbered(&file.comments()) {
            for name in marked(line) {
                if !entries.contains(name) {
                    faults.push(format!("{}:{n}: {ENTRIES} has no entry `{name}`", file.path));
                }
                covered.insert(name.to_owned());
            }
        }
    }
    let manifest = files.iter().find(|file| file.path == MANIFEST).map_or("", |file| &file.text);
    for name in entries {
        if !covered.contains(name) {
            faults.push(format!("{ENTRIES}: no parser in crates/ says ``Fuzzed as `{name}`.``"));
        }
        let target = format!("fuzz/fuzz_targets/{name}.rs");
        if !files.iter().any(|file| file.path == target)
            || !manifest.contains(&format!("path = \"fuzz_targets/{name}.rs\""))
        {
            faults.push(format!("{MANIFEST}: add the target `{name}`, and its file {target}"));
        }
    }
    faults
}

/// Whether the file belongs to what users run: the rest of the tree talks to its own processes only.
fn takes_foreign_bytes(path: &str) -> bool {
    let is_test = path.contains("/tests/") || path.ends_with("tests.rs");
    is_rust(path)
        && FOLDERS.iter().any(|folder| path.starts_with(folder))
        && !is_test
        && !OWN_BYTES.contains(&path)
}

/// The code in front of the file's tests.
fn production(code: &str) -> &str {
    code.split("\n#[cfg(test)]\nmod tests {").next().unwrap_or(code)
}

/// Whether line `n` of `code` begins a function that parses: by its name, and by what it takes.
fn parser(code: &str, n: usize) -> bool {
    let rest: String = code.lines().skip(n - 1).take(SIGNATURE_LINES).collect::<Vec<_>>().join(" ");
    let line = code.lines().nth(n - 1).unwrap_or_default();
    let Some((_, name)) = line.split_once("fn ") else { return false };
    let signature = rest.split('{').next().unwrap_or(&rest).replace("&mut [", "");
    NAMES.iter().any(|begin| name.starts_with(begin)) && INPUTS.iter().any(|input| signature.contains(input))
}

/// The comment above line `n`, attributes between them not counted.
fn comment_above(code: &str, comments: &[&str], n: usize) -> String {
    let code: Vec<&str> = code.lines().take(n - 1).collect();
    let above = (0..n - 1).rev().take_while(|i| {
        let code = code[*i].trim();
        code.is_empty() && !comments[*i].trim().is_empty() || code.starts_with("#[")
    });
    above.map(|i| comments[i]).collect::<Vec<_>>().join("\n")
}

fn is_marked(comment: &str) -> bool {
    comment.contains("Not fuzzed: ") || marked(comment).next().is_some()
}

/// The entries that a comment names.
fn marked(comment: &str) -> impl Iterator<Item = &str> {
    comment.split("Fuzzed as `").skip(1).filter_map(|rest| rest.split_once('`')).map(|(name, _)| name)
}

const ADVICE: &str = "a parser: say ``Fuzzed as `entry`.`` in its comment, or `Not fuzzed: reason`";
const FOLDERS: [&str; 7] = [
    "crates/capi/src/",
    "crates/cli/src/copy/",
    "crates/fabric/src/",
    "crates/log/src/",
    "crates/protocols/src/",
    "crates/squall/src/",
    "crates/transports/src/",
];
/// Files that make words of their own bytes, or of random ones.
const OWN_BYTES: [&str; 6] = [
    "crates/cli/src/copy/host.rs",
    "crates/fabric/src/region.rs",
    "crates/transports/src/bootstrap/coordinator.rs",
    "crates/transports/src/shm/fetching.rs",
    "crates/transports/src/tcp/output.rs",
    "crates/transports/src/verbs/queue_pair.rs",
];
const NAMES: [&str; 5] = ["decode", "from_bytes", "from_str", "parse", "read_"];
const INPUTS: [&str; 4] = ["[u8", "[u64]", "&str", "impl Read"];
const DECODERS: [&str; 7] = [
    "from_le_bytes(",
    "from_be_bytes(",
    "postcard::from_",
    "postcard::take_from_",
    "serde_json::from_",
    "toml::from_",
    "DeTable::parse",
];
/// Lines that a signature takes at most.
const SIGNATURE_LINES: usize = 8;

#[test]
fn a_parser_without_marker_is_refused() {
    let path = "crates/squall/src/a.rs";
    let faults = |text: &str| unmarked(&SourceFile::new(path, text));
    assert_eq!(faults("/// Reads.\npub(super) fn decode(bytes: &[u8]) -> u8 {}\n").len(), 1);
    assert_eq!(
        faults("/// Reads. Fuzzed as `a`.\n#[must_use]\npub(super) fn decode(bytes: &[u8]) -> u8 {}\n").len(),
        0
    );
    assert_eq!(
        faults("/// Fuzzed as `a`.\nfn a() {}\npub fn parse(\n    text: &str,\n) {}\n").len(),
        1,
        "its own comment"
    );
    assert_eq!(faults("/// Fuzzed as `a`.\nfn a() {}\nfn parse(text: &str) {}\n").len(), 0, "a part of `a`");
    assert_eq!(faults("fn a() { u64::from_le_bytes(b) }\n").len(), 1);
    assert_eq!(faults("// Not fuzzed: own bytes.\nfn a() { u64::from_le_bytes(b) }\n").len(), 0);
    assert_eq!(
        faults("fn a() {}\n#[cfg(test)]\nmod tests {\nfn b() { u64::from_le_bytes(b) }\n}\n").len(),
        0
    );
    assert_eq!(faults("pub fn parse(tree: &Tree) {}\n").len(), 0);
}

#[test]
fn an_entry_without_parser_is_refused() {
    let list = "    Parser { name: \"a\", feed: a::feed, seeds: a::seeds },\n";
    let files = [
        SourceFile::new("crates/squall/src/a.rs", "/// Fuzzed as `a`.\n/// Fuzzed as `b`.\n"),
        SourceFile::new("fuzz/fuzz_targets/a.rs", "//! Target.\n"),
        SourceFile::new(MANIFEST, "path = \"fuzz_targets/a.rs\"\n"),
    ];
    let found = mismatches(&entries(list), &files);
    assert_eq!(found, ["crates/squall/src/a.rs:2: fuzz/src/lib.rs has no entry `b`"]);
    assert_eq!(mismatches(&entries(list), &files[1..]).len(), 1, "no parser");
    assert_eq!(mismatches(&entries(list), &files[..1]).len(), 2, "no target, and an unknown entry");
}
