//! Progress bars: where they are drawn, and of which characters.

use indicatif::{ProgressDrawTarget, ProgressStyle};

/// Returns where bars are drawn: on standard error, and nowhere if that is no terminal.
pub fn target() -> ProgressDrawTarget {
    ProgressDrawTarget::stderr_with_hz(10)
}

/// Returns the style of a bar with this template.
///
/// # Panics
/// If the template is wrong.
pub fn style(template: &str) -> ProgressStyle {
    let style = ProgressStyle::with_template(template).expect("the template is right");
    style.progress_chars("━━─")
}
