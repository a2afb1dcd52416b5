//! The rules of the tree, beyond what compiler and clippy check: the direction of dependencies, headers that name their
//! paper, no stray unsafe, types with names of their own, sizes as a ratchet, invariants with witnesses, parsers with fuzz
//! entries, pages whose links, paths and commands exist, a book without loose ends, plain English. Each rule has a test beside it that shows it a fault.

#[path = "tidy/book.rs"]
mod book;
#[path = "tidy/commands.rs"]
mod commands;
#[path = "tidy/dependencies.rs"]
mod dependencies;
#[path = "tidy/errors.rs"]
mod errors;
#[path = "tidy/formats.rs"]
mod formats;
#[path = "tidy/invariants.rs"]
mod invariants;
#[path = "tidy/language.rs"]
mod language;
#[path = "tidy/names.rs"]
mod names;
#[path = "tidy/pages.rs"]
mod pages;
#[path = "tidy/parsers.rs"]
mod parsers;
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
fn dependencies_are_those_of_the_figures() {
    let files = source::tree();
    let page = text(&files, dependencies::PAGE);
    let uses: Vec<_> = dependencies::edges().into_iter().map(|edge| (edge, String::new())).collect();
    assert_none(&dependencies::faults(&dependencies::figure(&page, "cli"), &uses));
    for (folder, module) in [("protocols", "sst"), ("squall", "shared_poller")] {
        let modules = dependencies::figure(&page, module);
        assert_none(&dependencies::faults(&modules, &dependencies::edges_inside(folder, &modules, &files)));
    }
}

/// A changed format needs a higher version as soon as a release has had the old one.
#[test]
fn formats_are_those_of_the_version() {
    let files = source::tree();
    let found = formats::snapshot(&files);
    let path = source::root().join(formats::PATH);
    if std::env::var_os("UPDATE").is_some() {
        return std::fs::write(path, found).unwrap();
    }
    let noted = text(&files, formats::PATH);
    let new =
        |a: &str, b: &str| a.lines().filter(|l| !b.lines().any(|m| m == *l)).map(str::to_owned).collect();
    let (now, before): (Vec<String>, Vec<String>) = (new(&found, &noted), new(&noted, &found));
    let advice = "if a release has had the old format, raise `PROTOCOL_VERSION` and record a hello of it; then write the snapshot with UPDATE=1";
    assert!(found == noted, "{advice}\nbefore:\n{}\nnow:\n{}", before.join("\n"), now.join("\n"));
}

#[test]
fn files_keep_the_style() {
    assert_none(&source::tree().iter().flat_map(style::all).collect::<Vec<_>>());
}

#[test]
fn types_do_not_share_names() {
    assert_none(&names::shared(&source::rust_tree()));
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
fn ranges_of_numbers_are_whole() {
    let files = source::tree();
    let page = text(&files, invariants::INVARIANTS);
    let mut stated = invariants::stated(&text(&files, invariants::MODEL));
    stated.extend(invariants::stated(&page));
    let order = invariants::in_order(&page);
    let is_read = |file: &&SourceFile| pages::is_page(&file.path) || file.path.ends_with("/src/lib.rs");
    let ranges = files.iter().filter(is_read).flat_map(|file| invariants::cut_ranges(&stated, &order, file));
    assert_none(&ranges.collect::<Vec<_>>());
}

#[test]
fn parsers_are_fuzzed() {
    let files = source::tree();
    let entries = parsers::entries(&text(&files, parsers::ENTRIES));
    assert!(entries.contains("address") && entries.len() >= 15, "{entries:?}");
    assert_none(&files.iter().flat_map(parsers::unmarked).collect::<Vec<_>>());
    assert_none(&parsers::mismatches(&entries, &files));
}

#[test]
fn the_book_is_whole() {
    let (files, faults) = book::expanded(&source::tree());
    assert_none(&faults);
    assert_none(&book::faults_of_contents(&files));
    assert_none(&book::links_out(&files));
    assert_none(&book::left_over(&files));
}

#[test]
fn pages_name_what_exists() {
    let (files, _) = book::expanded(&source::tree());
    let pages = || files.iter().filter(|file| pages::is_page(&file.path));
    assert_none(&pages().flat_map(|page| pages::broken_links(page, &files)).collect::<Vec<_>>());
    assert_none(&pages().flat_map(pages::broken_paths).collect::<Vec<_>>());
    assert_none(&pages::unreachable(&files));
}

#[test]
fn pages_show_commands_that_exist() {
    let mut helps = commands::Helps::new();
    let mut help = |name: &str| commands::help(&mut helps, name);
    assert!(help("squall bench multicast").is_some() && help("squall bench none").is_none());
    let files = source::tree();
    let pages = files.iter().filter(|file| pages::is_page(&file.path));
    assert_none(&pages.flat_map(|page| commands::faults(page, &mut help)).collect::<Vec<_>>());
}

#[test]
fn pages_are_plain_english() {
    let files = source::tree();
    let pages = files.iter().filter(|file| pages::is_page(&file.path));
    assert_none(&pages.flat_map(language::in_page).collect::<Vec<_>>());
}

#[test]
fn words_to_replace_only_shrink() {
    let allowed = sizes::parse(include_str!("tidy/words.txt")).expect("words.txt can be read");
    assert_none(&language::compare(&language::in_code(&source::tree()), &allowed));
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
