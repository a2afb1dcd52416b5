//! The book (docs/book): its table of contents has every page once, what pages include exists, no link leads out of it, and
//! no picture is left over. The same as mdBook would read it, without mdBook.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use crate::pages::{self, is_page, resolved};
use crate::source::{SourceFile, numbered};

/// The folder whose files the book has.
const FOLDER: &str = "docs/book/src/";
const CONTENTS: &str = "docs/book/src/SUMMARY.md";

/// The tree with each page of the book as mdBook sees it, with what it includes in its place; and the includes of nothing.
pub(crate) fn expanded(files: &[SourceFile]) -> (Vec<SourceFile>, Vec<String>) {
    let mut faults = Vec::new();
    let tree: BTreeMap<&str, &SourceFile> = files.iter().map(|file| (file.path.as_str(), file)).collect();
    let expand = |file: &SourceFile| match is_of_book(&file.path) {
        true => SourceFile::new(&file.path, &with_includes(file, &tree, &mut faults)),
        false => file.clone(),
    };
    (files.iter().map(expand).collect(), faults)
}

/// Faults of the table of contents: pages that it lacks or has twice, and entries without a page.
pub(crate) fn faults_of_contents(files: &[SourceFile]) -> Vec<String> {
    let mut faults = Vec::new();
    let mut listed = BTreeSet::new();
    let contents = files.iter().find(|file| file.path == CONTENTS);
    for (n, line) in contents.iter().flat_map(|file| numbered(&file.text)) {
        for link in pages::links(line) {
            let path = resolved(CONTENTS, &link).to_string_lossy().into_owned();
            if !files.iter().any(|file| file.path == path) {
                faults.push(format!("{CONTENTS}:{n}: there is no page `{link}`"));
            }
            if !listed.insert(path) {
                faults.push(format!("{CONTENTS}:{n}: `{link}` is listed twice"));
            }
        }
    }
    let pages = files.iter().filter(|file| is_of_book(&file.path) && file.path != CONTENTS);
    let lost = pages.filter(|page| !listed.contains(&page.path));
    faults.extend(lost.map(|page| format!("{}: {CONTENTS} does not list it", page.path)));
    faults
}

/// Links of the book's pages to anything but its files: a reader of the built book has nothing else, and no list of a folder.
pub(crate) fn links_out(files: &[SourceFile]) -> Vec<String> {
    let mut faults = Vec::new();
    for page in files.iter().filter(|file| is_of_book(&file.path)) {
        for (n, line) in numbered(&pages::prose(&page.text)) {
            let links = pages::links(line);
            let out = links.iter().filter(|link| {
                let target = resolved(&page.path, link.split('#').next().unwrap_or(link));
                let mut of_book = files.iter().filter(|file| file.path.starts_with(FOLDER));
                !of_book.any(|file| Path::new(&file.path) == target)
            });
            faults.extend(out.map(|link| format!("{}:{n}: `{link}` leads out of the book", page.path)));
        }
    }
    faults
}

/// Files of the book, such as pictures, that no page shows.
pub(crate) fn left_over(files: &[SourceFile]) -> Vec<String> {
    let of_book = || files.iter().filter(|file| file.path.starts_with(FOLDER));
    let shown: BTreeSet<_> = of_book()
        .filter(|file| is_page(&file.path))
        .flat_map(|page| {
            let text = pages::prose(&page.text);
            text.lines().flat_map(pages::links).map(|link| resolved(&page.path, &link)).collect::<Vec<_>>()
        })
        .collect();
    let others = of_book().filter(|file| !is_page(&file.path) && !shown.contains(Path::new(&file.path)));
    others.map(|file| format!("{}: no page of the book shows it", file.path)).collect()
}

fn is_of_book(path: &str) -> bool {
    path.starts_with(FOLDER) && is_page(path)
}

/// The text of a page with its includes; these may have includes in turn.
fn with_includes(page: &SourceFile, tree: &BTreeMap<&str, &SourceFile>, faults: &mut Vec<String>) -> String {
    let mut rest = page.text.as_str();
    let mut text = String::new();
    while let Some((before, include)) = rest.split_once(INCLUDE) {
        let (what, after) = include.split_once("}}").unwrap_or((include, ""));
        text.push_str(before);
        match included(&page.path, what.trim(), tree) {
            Ok(file) => text.push_str(&with_includes(&file, tree, faults)),
            Err(fault) => faults.push(format!("{}: `{INCLUDE}{what}}}}}`: {fault}", page.path)),
        }
        rest = after;
    }
    text + rest
}

const INCLUDE: &str = "{{#include";

/// What `file` or `file:anchor` stands for in the page `path`.
fn included(path: &str, what: &str, tree: &BTreeMap<&str, &SourceFile>) -> Result<SourceFile, String> {
    let (file, anchor) = what.split_once(':').map_or((what, None), |(file, anchor)| (file, Some(anchor)));
    let name = resolved(path, file).to_string_lossy().into_owned();
    let file = tree.get(name.as_str()).ok_or_else(|| format!("there is no file {name}"))?;
    let text = match anchor {
        Some(anchor) => {
            anchored(&file.text, anchor).ok_or_else(|| format!("{name} has no anchor {anchor}"))?
        }
        None => file.text.trim_end().to_owned(),
    };
    Ok(SourceFile::new(&name, &text))
}

/// The lines between `ANCHOR: name` and `ANCHOR_END: name`, without those of other anchors.
fn anchored(text: &str, name: &str) -> Option<String> {
    let is_mark = |line: &str, mark: &str| {
        line.split_once(mark).is_some_and(|(_, rest)| rest.split_whitespace().next() == Some(name))
    };
    let from = text.lines().skip_while(|line| !is_mark(line, "ANCHOR: ")).skip(1);
    let mut lines: Vec<&str> = Vec::new();
    for line in from {
        if is_mark(line, "ANCHOR_END: ") {
            return Some(lines.join("\n"));
        }
        if !line.contains("ANCHOR: ") && !line.contains("ANCHOR_END: ") {
            lines.push(line);
        }
    }
    None
}

#[cfg(test)]
fn made_up(pages: &[(&str, &str)]) -> Vec<SourceFile> {
    pages.iter().map(|(path, text)| SourceFile::new(path, text)).collect()
}

#[test]
fn includes_are_put_in_and_those_of_nothing_are_refused() {
    let code = "use a;\n// ANCHOR: b\nlet b;\n// ANCHOR: c\nlet c;\n// ANCHOR_END: c\n// ANCHOR_END: b\n// ANCHOR: d\n";
    let text =
        "[{{#include ../../a.md}}]\n{{#include ../../a.rs:b}}\n{{#include ../../a.rs:d}}{{#include b.md}}";
    let files = made_up(&[
        ("docs/a.md", "A {{#include a.rs:c}}.\n"),
        ("docs/a.rs", code),
        ("docs/book/src/a.md", text),
    ]);
    let (tree, faults) = expanded(&files);
    assert_eq!(tree[2].text, "[A let c;.]\nlet b;\nlet c;\n");
    assert_eq!(tree[0].text, files[0].text, "only pages of the book are changed");
    assert!(faults.len() == 2 && faults[0].contains("no anchor d"), "{faults:?}");
    assert!(faults[1].contains("there is no file docs/book/src/b.md"), "{faults:?}");
}

#[test]
fn a_page_that_is_not_listed_once_is_refused() {
    let files = made_up(&[
        (CONTENTS, "- [A](a.md)\n- [B](b.md)\n- [A](a.md)\n"),
        ("docs/book/src/a.md", ""),
        ("docs/book/src/c/c.md", ""),
        ("docs/d.md", ""),
    ]);
    let faults = faults_of_contents(&files);
    assert_eq!(faults.len(), 3, "{faults:?}");
    assert!(faults[0].ends_with("no page `b.md`") && faults[1].contains("twice"), "{faults:?}");
    assert!(faults[2].starts_with("docs/book/src/c/c.md"), "{faults:?}");
}

#[test]
fn a_link_out_of_the_book_and_a_picture_without_a_page_are_refused() {
    let text = "[b](b/README.md#c) [d](../../d.md) [b](b/) [e](https://docs.rs/e) ![f](f.svg) [#](#g)";
    let files = made_up(&[
        ("docs/book/src/a.md", text),
        ("docs/book/src/b/README.md", ""),
        ("docs/book/src/f.svg", ""),
        ("docs/book/src/g.svg", ""),
        ("docs/d.md", ""),
    ]);
    let faults = links_out(&files);
    assert_eq!(faults.len(), 2, "{faults:?}");
    assert_eq!(faults[0], "docs/book/src/a.md:1: `../../d.md` leads out of the book");
    assert_eq!(faults[1], "docs/book/src/a.md:1: `b/` leads out of the book");
    assert_eq!(left_over(&files), ["docs/book/src/g.svg: no page of the book shows it"]);
}
