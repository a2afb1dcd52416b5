//! Progress bars: where they are drawn, and of which characters.

use std::fmt::Write;
use std::sync::LazyLock;

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};

use super::units;

/// Shows `bar` below those that are shown already, on standard error; nowhere if that is no terminal.
#[must_use]
pub fn show(bar: ProgressBar) -> ProgressBar {
    SCREEN.add(bar)
}

/// Removes all bars from the terminal.
pub fn clear() {
    // It fails if the terminal has gone, and the bars with it.
    let _ = SCREEN.clear();
}

/// Runs `print`, which writes to the terminal, while no bar is there. It must not call this function again.
pub fn suspend<R>(print: impl FnOnce() -> R) -> R {
    SCREEN.suspend(print)
}

/// Returns the style of a bar with this template.
///
/// # Panics
/// If the template is wrong.
#[must_use]
pub fn style(template: &str) -> ProgressStyle {
    let style = ProgressStyle::with_template(template).expect("the template is right");
    style.progress_chars("━━─")
}

/// As [`style`], with `{rate}` for the number of things per second and `{bytes_rate}` if these are bytes.
///
/// # Panics
/// If the template is wrong.
#[must_use]
pub fn rate_style(template: &str) -> ProgressStyle {
    let rate = |format: fn(f64) -> String| {
        move |state: &ProgressState, out: &mut dyn Write| {
            // The writer is a String, which takes all.
            let _ = write!(out, "{}/s", format(state.per_sec()));
        }
    };
    style(template).with_key("rate", rate(units::count)).with_key("bytes_rate", rate(units::bytes))
}

/// All bars of this process. What else is written to the terminal goes through [`suspend`].
static SCREEN: LazyLock<MultiProgress> =
    LazyLock::new(|| MultiProgress::with_draw_target(ProgressDrawTarget::stderr_with_hz(10)));
