//! The files of the tree, and Rust text split into code, comments and literals.

use std::fs;
use std::path::{Path, PathBuf};

/// A text file of the tree.
#[derive(Clone, Debug)]
pub(crate) struct SourceFile {
    /// From the root of the tree, with `/` between folders.
    pub(crate) path: String,
    /// What it holds.
    pub(crate) text: String,
}

impl SourceFile {
    /// A made-up file, for a check's own test.
    pub(crate) fn new(path: &str, text: &str) -> Self {
        Self { path: path.into(), text: text.into() }
    }

    /// The `//!` lines that the file begins with, without their marks, joined by spaces.
    pub(crate) fn header(&self) -> String {
        let lines = self.text.lines().map_while(|line| line.strip_prefix("//!"));
        lines.map(str::trim).collect::<Vec<_>>().join(" ")
    }

    /// The text with comments blanked and every literal replaced by quotation marks; lines stay where they are.
    pub(crate) fn code(&self) -> String {
        self.keep(|part| match part {
            Part::Code => Keep::Text,
            Part::Literal => Keep::Mark,
            Part::Comment => Keep::Nothing,
        })
    }

    /// The text of the comments alone; lines stay where they are.
    pub(crate) fn comments(&self) -> String {
        self.keep(|part| if part == Part::Comment { Keep::Text } else { Keep::Nothing })
    }

    /// The literals alone; lines stay where they are.
    pub(crate) fn literals(&self) -> String {
        self.keep(|part| if part == Part::Literal { Keep::Text } else { Keep::Nothing })
    }

    fn keep(&self, rule: impl Fn(Part) -> Keep) -> String {
        let parts = parts(&self.text);
        let kept = self.text.chars().zip(parts).map(|(c, part)| match rule(part) {
            Keep::Text => c,
            Keep::Mark if !c.is_whitespace() => '"',
            _ if c == '\n' => '\n',
            _ => ' ',
        });
        kept.collect()
    }
}

/// The root of the tree.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the tree has a root")
}

/// All text files of the tree, except what builds leave behind, sorted by path.
pub(crate) fn tree() -> Vec<SourceFile> {
    let root = root();
    let mut files = Vec::new();
    visit(&root, &root, &mut files);
    files.sort_by(|a, b| a.path.cmp(&b.path));
    files
}

/// The Rust files of the tree.
pub(crate) fn rust_tree() -> Vec<SourceFile> {
    tree().into_iter().filter(|file| is_rust(&file.path)).collect()
}

/// Whether `path` names a Rust file.
pub(crate) fn is_rust(path: &str) -> bool {
    Path::new(path).extension().is_some_and(|extension| extension == "rs")
}

/// The lines of `text` with their numbers, from 1.
pub(crate) fn numbered(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.lines().enumerate().map(|(i, line)| (i + 1, line))
}

/// Whether `line` holds `word` with no letter, digit or underscore at either side.
pub(crate) fn has_word(line: &str, word: &str) -> bool {
    let inside = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
    line.match_indices(word).any(|(at, _)| {
        !inside(line[..at].chars().next_back()) && !inside(line[at + word.len()..].chars().next())
    })
}

fn visit(root: &Path, folder: &Path, files: &mut Vec<SourceFile>) {
    for entry in fs::read_dir(folder).expect("a folder of the tree can be read") {
        let path = entry.expect("an entry can be read").path();
        let relative = path.strip_prefix(root).expect("inside the root").to_string_lossy().replace('\\', "/");
        if path.is_dir() {
            if !is_left_behind(&relative) {
                visit(root, &path, files);
            }
        } else if relative != ".git" // A file in a linked work tree.
            && let Ok(text) = fs::read_to_string(&path)
        {
            files.push(SourceFile { path: relative, text });
        }
    }
}

/// What `.gitignore` names.
fn is_left_behind(folder: &str) -> bool {
    let name = folder.rsplit('/').next().unwrap_or(folder);
    name == ".git"
        || name == "target"
        || name == "__pycache__"
        || name.starts_with("target-")
        || matches!(folder, "fuzz/corpus" | "fuzz/artifacts" | "bench/build")
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    Code,
    Comment,
    Literal,
}

enum Keep {
    Text,
    Mark,
    Nothing,
}

/// Says for each character of Rust text which part it belongs to.
fn parts(text: &str) -> Vec<Part> {
    let chars: Vec<char> = text.chars().collect();
    let mut parts = Vec::with_capacity(chars.len());
    while parts.len() < chars.len() {
        let rest = &chars[parts.len()..];
        let previous = parts.len().checked_sub(1).map(|i| chars[i]);
        let (part, length) = next_part(rest, previous);
        parts.extend(std::iter::repeat_n(part, length));
    }
    parts
}

/// The part that `rest` begins with, and its length.
fn next_part(rest: &[char], previous: Option<char>) -> (Part, usize) {
    let in_word = previous.is_some_and(|c| c.is_alphanumeric() || c == '_');
    match rest {
        ['/', '/', ..] => (Part::Comment, rest.iter().take_while(|c| **c != '\n').count()),
        ['/', '*', ..] => (Part::Comment, block_comment(rest)),
        ['"', ..] => (Part::Literal, quoted(rest, '"')),
        ['r', '"' | '#', ..] if !in_word => raw_string(rest),
        ['b' | 'c', 'r', '"' | '#', ..] if !in_word => {
            let (part, length) = raw_string(&rest[1..]);
            (part, length + 1)
        }
        ['\'', '\\', ..] => (Part::Literal, quoted(rest, '\'')),
        ['\'', _, '\'', ..] => (Part::Literal, 3),
        _ => (Part::Code, 1),
    }
}

fn block_comment(rest: &[char]) -> usize {
    let (mut depth, mut i) = (0, 0);
    while i < rest.len() {
        match rest[i..] {
            ['/', '*', ..] => (depth, i) = (depth + 1, i + 2),
            ['*', '/', ..] => (depth, i) = (depth - 1, i + 2),
            _ => i += 1,
        }
        if depth == 0 {
            break;
        }
    }
    i.min(rest.len())
}

fn quoted(rest: &[char], end: char) -> usize {
    let mut i = 1;
    while i < rest.len() && rest[i] != end {
        i += if rest[i] == '\\' { 2 } else { 1 };
    }
    (i + 1).min(rest.len())
}

/// `r"…"`, `r#"…"#`; a raw identifier such as `r#type` is code.
fn raw_string(rest: &[char]) -> (Part, usize) {
    let marks = rest[1..].iter().take_while(|c| **c == '#').count();
    if rest.get(1 + marks) != Some(&'"') {
        return (Part::Code, 1);
    }
    let ends =
        |i: usize| rest[i] == '"' && rest[i + 1..].iter().take(marks).filter(|c| **c == '#').count() == marks;
    let end = (2 + marks..rest.len()).find(|i| ends(*i)).unwrap_or(rest.len());
    (Part::Literal, (end + 1 + marks).min(rest.len()))
}

#[test]
fn comments_and_literals_are_not_code() {
    let file = SourceFile::new(
        "a.rs",
        "let s = \"// no\\\"\"; // yes unsafe\n/* a /* b */ c */ let c = '\\''; 'a: loop {}\n",
    );
    assert_eq!(file.code().replace(' ', ""), "lets=\"\"\"\"\"\"\"\";\nletc=\"\"\"\";'a:loop{}\n");
    assert_eq!(
        file.comments().split_whitespace().collect::<Vec<_>>().join(" "),
        "// yes unsafe /* a /* b */ c */"
    );
}

#[test]
fn raw_strings_end_at_their_own_marks() {
    let file = SourceFile::new("a.rs", "let r#type = r#\"a\" // \"#; br\"x\"; unsafe {}");
    assert!(!file.code().contains("//"), "{}", file.code());
    assert!(file.code().contains("unsafe {}") && file.code().contains("r#type"), "{}", file.code());
    assert_eq!(file.comments().trim(), "");
}

#[test]
fn the_tree_is_found() {
    let files = tree();
    assert!(files.iter().any(|file| file.path == "crates/fabric/src/model.md"));
    assert!(files.iter().all(|file| !file.path.starts_with("target")));
}
