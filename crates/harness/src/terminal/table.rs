//! Tables: columns as wide as their widest cell, numbers to the right.

use console::measure_text_width;

/// Returns the lines of a table whose first row is the header. Columns other than the first are aligned to the right.
#[must_use]
pub fn lines(rows: &[Vec<String>]) -> Vec<String> {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        rows.iter().filter_map(|row| row.get(column)).map(|cell| measure_text_width(cell)).max()
    };
    let widths: Vec<_> = (0..columns).map(|column| width(column).unwrap_or(0)).collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).enumerate().map(|(column, (cell, width))| {
            let space = " ".repeat(width - measure_text_width(cell));
            if column == 0 { format!("{cell}{space}") } else { format!("{space}{cell}") }
        });
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    rows.iter().map(line).collect()
}

/// Returns the width of a table's longest line in characters.
#[must_use]
pub fn width(rows: &[Vec<String>]) -> usize {
    lines(rows).iter().map(|line| measure_text_width(line)).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_they_need_to_be() {
        let rows = [["name", "µs"], ["a", "12345"]].map(|row| row.map(String::from).to_vec());
        assert_eq!(lines(&rows), ["name     µs", "a     12345"]);
        assert_eq!(width(&rows), 11);
    }
}
