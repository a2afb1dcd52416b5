//! The page of the book on what goes wrong, as the tests read it that make each case: the texts in its table are those that are seen.

/// Asserts that what was seen in a case has the texts that the page's cell shows as code, in their order; `…` stands for anything. A cell
/// without code has to be equal, up to its first comma or colon.
pub(crate) fn assert_seen(case: &str, column: &str, seen: &str) {
    let cell = cell(case, column);
    let texts = code(&cell);
    if texts.is_empty() {
        let plain = cell.split([',', ':', ';']).next().unwrap_or_default();
        return assert_eq!(seen.trim(), plain.trim(), "{case}, {column}: {cell}");
    }
    for text in texts {
        let mut rest = seen;
        for part in text.split('…').map(str::trim) {
            let place = rest.find(part);
            let place =
                place.unwrap_or_else(|| panic!("{case}, {column}: not `{part}` of `{text}` in {seen}"));
            rest = &rest[place + part.len()..];
        }
    }
}

/// The cell of a case in a column, which is named by the beginning of its head.
fn cell(case: &str, column: &str) -> String {
    let mut rows = PAGE.lines().filter(|line| line.starts_with('|')).map(cells);
    let heads = rows.next().expect("the page has a table");
    let place = heads.iter().position(|head| head.trim_matches('`').starts_with(column));
    let place = place.unwrap_or_else(|| panic!("no column `{column}` among {heads:?}"));
    let row = rows.find(|row| row[0] == case).unwrap_or_else(|| panic!("the page has no row `{case}`"));
    row[place].clone()
}

fn cells(line: &str) -> Vec<String> {
    line.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect()
}

/// The texts between backquotes, one or two.
fn code(cell: &str) -> Vec<&str> {
    let (mut found, mut rest) = (Vec::new(), cell);
    while let Some(begin) = rest.find('`') {
        let mark = if rest[begin..].starts_with("``") { "``" } else { "`" };
        let inside = &rest[begin + mark.len()..];
        let end = inside.find(mark).expect("code has an end");
        found.push(inside[..end].trim());
        rest = &inside[end + mark.len()..];
    }
    found
}

const PAGE: &str = include_str!("../docs/book/src/trouble.md");
