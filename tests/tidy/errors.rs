//! Each cause once: an error that has its cause in its text has none as its source, and programs print errors by one function.

use crate::source::{SourceFile, numbered};

/// An error that is printed with its sources, as by `anyhow`, says its cause once: either its text has it, or its source is it.
pub(crate) fn says_causes_once(file: &SourceFile) -> Vec<String> {
    let mut is_transparent = true;
    let mut faults = vec![];
    for (n, line) in numbered(&file.text) {
        let line = line.trim();
        if line.starts_with("#[error(") {
            is_transparent = line.starts_with("#[error(transparent");
        }
        let has_source =
            line.contains("#[from]") || line.contains("#[source]") || line.starts_with("source: ");
        if has_source && !is_transparent && is_error_file(file) {
            faults.push(format!(
                "{}:{n}: print the cause in the text, and make it a field `cause` that is no source",
                file.path
            ));
        }
    }
    faults
}

fn is_error_file(file: &SourceFile) -> bool {
    file.path.starts_with("crates/") && file.text.contains("thiserror::Error")
}

/// A program prints an error with its causes by `terminal::error_text`, which leaves out what has been said.
pub(crate) fn prints_by_one_function(file: &SourceFile) -> Vec<String> {
    if !file.path.starts_with("crates/") {
        return vec![];
    }
    let literals = file.literals();
    let lines = numbered(&literals).filter(|(_, line)| line.contains(":#}"));
    lines.map(|(n, _)| format!("{}:{n}: print errors with `terminal::error_text`", file.path)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_that_are_said_twice_are_found() {
        let file = |variant: &str| {
            let text =
                format!("use thiserror::Error;\n#[derive(thiserror::Error)]\nenum E {{\n{variant}\n}}\n");
            SourceFile::new("crates/a/src/error.rs", &text)
        };
        for twice in [
            "#[error(\"failed: {0}\")]\nA(#[from] io::Error),",
            "#[error(\"failed: {source}\")]\nA {\n    source: io::Error,\n},",
            "#[error(transparent)]\nA(#[from] B),\n#[error(\"failed\")]\nC(#[source] D),",
        ] {
            assert_eq!(says_causes_once(&file(twice)).len(), 1, "{twice}");
        }
        for once in [
            "#[error(transparent)]\nA(#[from] io::Error),",
            "#[error(\"failed: {cause}\")]\nA {\n    cause: io::Error,\n},",
        ] {
            assert_eq!(says_causes_once(&file(once)), Vec::<String>::new());
        }
    }

    #[test]
    fn errors_that_are_printed_otherwise_are_found() {
        let file = |text: &str| SourceFile::new("crates/a/src/main.rs", text);
        assert_eq!(prints_by_one_function(&file("fn f() { print(\"{error:#}\") }")).len(), 1);
        assert_eq!(
            prints_by_one_function(&file("fn f() { print(error_text(error)) } // {error:#}")).len(),
            0
        );
    }
}
