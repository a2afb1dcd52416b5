//! What a test does where a panic would have others wait forever.

use std::backtrace::Backtrace;
use std::cell::Cell;
use std::io::{self, Write};
use std::panic::{self, AssertUnwindSafe};
use std::sync::Once;

/// Returns what `act` returns. If it panics, prints why and ends the process: other threads would wait for this one.
///
/// The harness shows what a test prints when the test has ended, and this one never does: so the reason goes to the standard error itself.
pub(crate) fn or_abort<R>(act: impl FnOnce() -> R) -> R {
    thread_local!(static ABORTS: Cell<bool> = const { Cell::new(false) });
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |why| {
            if ABORTS.get() {
                // There is nothing else to do about an error.
                let _ = writeln!(io::stderr(), "{why}\n{}", Backtrace::capture());
            } else {
                before(why);
            }
        }));
    });
    let is_nested = ABORTS.replace(true);
    let result = panic::catch_unwind(AssertUnwindSafe(act)).unwrap_or_else(|_| std::process::abort());
    ABORTS.set(is_nested);
    result
}

/// The reason is on the standard error, although the harness keeps what tests print.
#[test]
fn an_abort_says_why() {
    const VARIABLE: &str = "SQUALL_TEST_ABORTS";
    if std::env::var_os(VARIABLE).is_some() {
        or_abort(|| panic!("this is why"));
    }
    let (_, module) = module_path!().split_once("::").expect("it is a module of a test program");
    let test = format!("{module}::an_abort_says_why");
    let mut program = std::process::Command::new(std::env::current_exe().expect("it is known"));
    let ended = program.args(["--exact", &test]).env(VARIABLE, "1").output().expect("it can be started");
    let text = String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.code().is_none() && text.contains("this is why"), "{}: {text}", ended.status);
    assert!(text.contains("aborting.rs"), "it says where: {text}");
}
