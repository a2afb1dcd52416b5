//! The tables of docs/results that cost models give: the figures of the papers in Markdown (Derecho §4, Spindle §4, RDMC §4, RamCast
//! §5, EXS §IV).

mod growth;
mod ramcast;
mod rdmc;
mod spindle;
mod stream;

use std::fmt::Display;

/// The tables of a page.
#[derive(Clone, Copy, Debug)]
pub struct TableSet {
    /// Its name.
    pub name: &'static str,
    /// What it shows, in a line.
    pub about: &'static str,
    /// Its tables, each by its name.
    pub tables: &'static [(&'static str, FigureTable)],
}

/// Writes a table; some take minutes.
pub type FigureTable = fn(&mut TablePage<'_>);

/// All tables.
pub const ALL: [TableSet; 5] = [spindle::SET, rdmc::SET, ramcast::SET, stream::SET, growth::SET];

/// The page to which tables are written, line by line.
pub struct TablePage<'p> {
    line: &'p mut dyn FnMut(&str),
    /// Processor time of this thread in nanoseconds, for what is not predicted but measured.
    clock: fn() -> u64,
}

impl<'p> TablePage<'p> {
    /// Returns a page whose lines go to `line`, with a clock of the processor time of this thread in nanoseconds.
    pub fn new(clock: fn() -> u64, line: &'p mut dyn FnMut(&str)) -> Self {
        Self { line, clock }
    }

    /// Begins a table, whose columns are separated by ` | `.
    fn table(&mut self, title: impl Display, columns: &str) {
        let rule = "|---".repeat(columns.split(" | ").count());
        (self.line)(&format!("\n## {title}\n\n| {columns} |\n{rule}|"));
    }

    /// Writes a row, whose cells are separated by ` | `.
    fn row(&mut self, cells: impl Display) {
        (self.line)(&format!("| {cells} |"));
    }
}

/// Returns the cells of a row with a number of decimals.
fn cells(values: impl IntoIterator<Item = f64>, decimals: usize) -> String {
    values.into_iter().map(|value| format!("{value:.decimals$}")).collect::<Vec<_>>().join(" | ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_have_as_many_cells_as_there_are_columns() {
        let mut text = String::new();
        let mut line = |line: &str| text += &format!("{line}\n");
        let mut page = TablePage::new(|| 0, &mut line);
        page.table("Rates", "members | all send | one sends");
        page.row(format_args!("2 | {}", cells([1.25, 3.0], 1)));
        assert_eq!(
            text,
            "\n## Rates\n\n| members | all send | one sends |\n|---|---|---|\n| 2 | 1.2 | 3.0 |\n"
        );
    }
}
