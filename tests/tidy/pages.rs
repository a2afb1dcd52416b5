//! Pages: what they link to exists, what they name by its path exists, and each page can be reached from another one.

use std::collections::BTreeSet;
use std::path::{Component, Path, PathBuf};

use crate::source::{SourceFile, numbered, root};

/// Whether `path` names a page.
pub(crate) fn is_page(path: &str) -> bool {
    Path::new(path).extension().is_some_and(|extension| extension == "md")
}

/// Relative links whose file, or whose heading behind `#`, does not exist.
pub(crate) fn broken_links(page: &SourceFile, files: &[SourceFile]) -> Vec<String> {
    let mut faults = Vec::new();
    for (n, line) in numbered(&prose(&page.text)) {
        for link in links(line) {
            let (path, heading) = link.split_once('#').unwrap_or((&link, ""));
            let path = resolved(&page.path, path);
            let target = files.iter().find(|file| Path::new(&file.path) == path);
            if target.is_none() && !root().join(&path).exists() {
                faults.push(format!("{}:{n}: the link `{link}` leads nowhere", page.path));
            } else if !heading.is_empty()
                && !target.is_some_and(|file| headings(&file.text).contains(heading))
            {
                faults.push(format!("{}:{n}: `{link}`: there is no such heading", page.path));
            }
        }
    }
    faults
}

/// Paths of the tree in backticks that do not exist. Braces and wildcards stand for one file at least.
pub(crate) fn broken_paths(page: &SourceFile) -> Vec<String> {
    let mut faults = Vec::new();
    for (n, line) in numbered(&page.text) {
        let named = line.split('`').skip(1).step_by(2);
        let paths = named.filter(|name| FOLDERS.iter().any(|folder| name.starts_with(folder)));
        for path in paths.filter(|path| !path.contains(' ')) {
            for path in expanded(path) {
                if !root().join(&path).exists() {
                    faults.push(format!("{}:{n}: `{path}` does not exist", page.path));
                }
            }
        }
    }
    faults
}

/// Pages below `docs/` that no other page links to; those below `docs/papers/` have to be in the folder's own list.
pub(crate) fn unreachable(files: &[SourceFile]) -> Vec<String> {
    let pages = || files.iter().filter(|file| is_page(&file.path));
    let is_linked = |path: &str, from: &SourceFile| {
        let text = prose(&from.text);
        from.path != path
            && text.lines().flat_map(links).any(|link| {
                let link = link.split('#').next().unwrap_or(&link);
                resolved(&from.path, link) == Path::new(path)
            })
    };
    let is_list = |from: &SourceFile, path: &str| {
        !path.starts_with(PAPERS) || from.path == format!("{PAPERS}README.md")
    };
    let lost = pages().filter(|page| page.path.starts_with("docs/") && !page.path.ends_with("/README.md"));
    let lost =
        lost.filter(|page| !pages().any(|from| is_list(from, &page.path) && is_linked(&page.path, from)));
    lost.map(|page| format!("{}: no page links to it", page.path)).collect()
}

/// The text with fenced code blanked; lines stay where they are.
pub(crate) fn prose(text: &str) -> String {
    let mut is_code = false;
    let lines = text.lines().map(|line| {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        if is_code || is_fence { "" } else { line }
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// The relative links of a line, outside code.
pub(crate) fn links(line: &str) -> Vec<String> {
    let line: String = line.split('`').step_by(2).collect();
    let targets = line.split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|(link, _)| link);
    targets.filter(|link| !link.contains("://")).map(String::from).collect()
}

/// `link` as it is meant in the page `path`, from the root of the tree.
pub(crate) fn resolved(path: &str, link: &str) -> PathBuf {
    let from = if link.is_empty() { PathBuf::from(path) } else { Path::new(path).with_file_name(link) };
    let mut resolved = PathBuf::new();
    for part in from.components() {
        match part {
            Component::ParentDir => drop(resolved.pop()),
            Component::CurDir => {}
            part => resolved.push(part),
        }
    }
    resolved
}

/// The names by which links lead to the headings of a page.
fn headings(text: &str) -> BTreeSet<String> {
    let prose = prose(text);
    let lines = prose.lines().filter(|line| line.starts_with('#'));
    lines.map(|line| anchor(line.trim_start_matches('#').trim())).collect()
}

/// Lower case, spaces as hyphens, without other marks.
fn anchor(heading: &str) -> String {
    let kept = heading.chars().filter(|c| c.is_alphanumeric() || "-_ ".contains(*c));
    kept.flat_map(char::to_lowercase).map(|c| if c == ' ' { '-' } else { c }).collect()
}

/// The paths that `path` stands for: `a/{b,c}` for two, and what is before `*` or `…` for the rest.
fn expanded(path: &str) -> Vec<String> {
    let path = path.trim_end_matches('/').split(['*', '…']).next().unwrap_or(path);
    let path = path.split(':').next().unwrap_or(path);
    let Some((before, rest)) = path.split_once('{') else { return vec![path.to_owned()] };
    let Some((inside, after)) = rest.split_once('}') else { return vec![path.to_owned()] };
    inside.split(',').map(|part| format!("{before}{part}{after}")).collect()
}

const FOLDERS: [&str; 9] =
    [".ci/", ".github/", "bench/", "crates/", "docs/", "fuzz/", "packaging/", "tests/", "tools/"];
const PAPERS: &str = "docs/papers/";

#[test]
fn a_link_that_leads_nowhere_is_refused() {
    let target =
        SourceFile::new("docs/a.md", "# Title\n## A heading: `code`, and more\n```\n# no heading\n```\n");
    let page = |text: &str| SourceFile::new("docs/results/b.md", text);
    let faults = |text: &str| broken_links(&page(text), std::slice::from_ref(&target)).len();
    assert_eq!(
        faults("[a](../a.md) [b](../a.md#a-heading-code-and-more) [c](https://docs.rs/c) `[d](e)`"),
        0
    );
    assert_eq!(faults("[a](a.md)\n[b](../a.md#no-heading)\n```\n[c](c.md)\n```\n"), 2);
}

#[test]
fn a_path_of_nothing_is_refused() {
    let faults = |text: &str| broken_paths(&SourceFile::new("a.md", text));
    let good =
        "`tests/tidy.rs`, `crates/{fabric,squall}/src`, `docs/results/*.md`, `bench/run NAME`, `tests`";
    assert_eq!(faults(good), Vec::<String>::new());
    assert_eq!(faults("see\n`crates/{fabric,none}/src`"), ["a.md:2: `crates/none/src` does not exist"]);
}

#[test]
fn a_page_that_nothing_links_to_is_refused() {
    let new = SourceFile::new;
    let (readme, list) =
        (new("README.md", "[a](docs/papers/a.md)"), new("docs/papers/README.md", "[b](b.md)"));
    let pages = [readme, list, new("docs/papers/a.md", ""), new("docs/papers/b.md", "")];
    assert_eq!(unreachable(&pages), ["docs/papers/a.md: no page links to it"]);
    assert_eq!(unreachable(&[new("docs/c.md", "[c](c.md)")]), ["docs/c.md: no page links to it"]);
}
