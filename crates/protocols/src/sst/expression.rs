//! Row functions and reducers: formulas over the whole table (Derecho §3.2).
//!
//! A row function maps one row to a value; a reducer summarises it over all rows. The result is an
//! [`Expression`], and expressions combine like the formulas of a spreadsheet.

use squall_fabric::layout::Word;
use squall_fabric::{Column, Region};

use super::Table;

/// A formula over the table: reads local memory only.
pub type Expression<T> = Box<dyn Fn(&Table) -> T + Send>;

/// The row function that reads `column`.
pub fn row<T: Word + 'static>(column: Column<T>) -> impl Fn(&Region) -> T + Copy + Send + 'static {
    move |row| column.load(row)
}

/// The least value of `function` over all rows.
///
/// # Panics
/// The expression panics on a table without rows, which there is not.
pub fn min<T: Ord + 'static>(function: impl Fn(&Region) -> T + Send + 'static) -> Expression<T> {
    Box::new(move |table| table.rows().iter().map(&function).min().expect("a table has rows"))
}

/// The greatest value of `function` over all rows.
///
/// # Panics
/// The expression panics on a table without rows, which there is not.
pub fn max<T: Ord + 'static>(function: impl Fn(&Region) -> T + Send + 'static) -> Expression<T> {
    Box::new(move |table| table.rows().iter().map(&function).max().expect("a table has rows"))
}

/// The sum of `function` over all rows.
pub fn sum(function: impl Fn(&Region) -> u64 + Send + 'static) -> Expression<u64> {
    Box::new(move |table| table.rows().iter().map(&function).sum())
}

/// The number of rows for which `function` holds.
pub fn count(function: impl Fn(&Region) -> bool + Send + 'static) -> Expression<usize> {
    Box::new(move |table| table.rows().iter().filter(|row| function(row)).count())
}

/// Whether `function` holds for all rows.
pub fn all(function: impl Fn(&Region) -> bool + Send + 'static) -> Expression<bool> {
    Box::new(move |table| table.rows().iter().all(&function))
}

/// Whether `function` holds for some row.
pub fn any(function: impl Fn(&Region) -> bool + Send + 'static) -> Expression<bool> {
    Box::new(move |table| table.rows().iter().any(&function))
}
