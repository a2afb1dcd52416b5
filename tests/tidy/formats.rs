//! The messages of members, clients and hosts, as a snapshot beside the protocol's version: no format changes unnoticed.
//!
//! `formats.txt` has the definition of each type that is written and read again, without comments, and the columns of the membership's row.
//! `UPDATE=1 cargo test --test tidy formats` writes it.

use crate::source::SourceFile;

pub(crate) const PATH: &str = "tests/tidy/formats.txt";
/// Where the version stands, and where the row is laid out.
const VERSION: &str = "crates/transports/src/session/handshake.rs";
const ROW: &str = "crates/protocols/src/membership/row.rs";

/// Returns the snapshot of these files.
pub(crate) fn snapshot(files: &[SourceFile]) -> String {
    let mut lines = Vec::new();
    for file in files.iter().filter(|file| is_sent(&file.path)) {
        // Names in attributes are a part of the format, and `code` would leave them out.
        let code: String = file
            .text
            .lines()
            .filter(|line| !line.trim_start().starts_with("//"))
            .map(|line| format!("{line}\n"))
            .collect();
        if file.path == VERSION {
            let version = code.lines().filter(|line| line.starts_with("pub const PROTOCOL_VERSION"));
            lines.extend(version.map(squeezed));
        }
        if file.path == ROW {
            lines.extend(code.lines().filter(|line| line.contains("layout.")).map(squeezed));
        }
        lines.extend(definitions(&code));
    }
    lines.join("\n") + "\n"
}

/// Files of what ships; tests, benchmarks and the simulator send nothing to another release.
fn is_sent(path: &str) -> bool {
    let sent = ["protocols", "transports", "squall", "dds", "cli"];
    sent.iter().any(|folder| path.starts_with(&format!("crates/{folder}/src/"))) && !path.contains("/tests")
}

/// Returns the types that are written and read again, each in one line.
fn definitions(code: &str) -> Vec<String> {
    let derives = |line: &str| {
        let has = |name| line.contains(&format!(" {name}")) || line.contains(&format!("({name}"));
        line.starts_with("#[derive(") && has("Serialize") && has("Deserialize")
    };
    let mut found = Vec::new();
    let mut lines = code.lines().peekable();
    while let Some(line) = lines.next() {
        if !derives(line) {
            continue;
        }
        let mut text = Vec::new();
        for line in lines.by_ref() {
            text.push(line);
            if line.starts_with('}') || line.ends_with(';') || line.ends_with("{}") {
                break;
            }
        }
        found.push(squeezed(&text.join(" ")));
    }
    found
}

/// Returns the text with one space between words.
fn squeezed(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn a_changed_field_is_noticed() {
    let file = |text| vec![SourceFile::new("crates/cli/src/copy/message.rs", text)];
    let one = snapshot(&file(
        "#[derive(Clone, Serialize, Deserialize)]\nstruct A {\n    // What it is.\n    a: u8,\n}\nfn f() {}\n",
    ));
    assert_eq!(one, "struct A { a: u8, }\n");
    assert_eq!(
        snapshot(&file("#[derive(Serialize, Deserialize)]\nstruct A(u8);\nstruct B;\n")),
        "struct A(u8);\n"
    );
    assert_eq!(snapshot(&file("#[derive(Serialize)]\nstruct A(u8);\n")), "\n");
}
