//! Errors whose Debug form is their text: a program whose `main` returns one prints what a person can read, and not the
//! names of variants, because the standard library prints that error by Debug.

use std::error::Error;
use std::fmt;

/// Writes what `error` says, and what its sources add to that.
///
/// # Errors
/// The formatter's.
pub fn write_error(error: &dyn Error, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        // Most texts contain those of their causes.
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        source = cause.source();
    }
    f.write_str(&text)
}

/// Implements Debug for error types by [`write_error`].
#[macro_export]
macro_rules! debug_as_text {
    ($($error:ty),+ $(,)?) => {
        $(
            impl ::std::fmt::Debug for $error {
                fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                    $crate::write_error(self, f)
                }
            }
        )+
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Outer(std::num::ParseIntError);
    debug_as_text!(Outer);

    impl fmt::Display for Outer {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("the port is wrong")
        }
    }

    impl Error for Outer {
        fn source(&self) -> Option<&(dyn Error + 'static)> {
            Some(&self.0)
        }
    }

    #[test]
    fn a_text_is_followed_by_what_its_cause_adds() {
        let outer = Outer("x".parse::<u16>().unwrap_err());
        assert_eq!(format!("{outer:?}"), "the port is wrong: invalid digit found in string");
        let boxed: Box<dyn Error> = outer.into();
        assert_eq!(format!("{boxed:?}"), "the port is wrong: invalid digit found in string");
    }
}
