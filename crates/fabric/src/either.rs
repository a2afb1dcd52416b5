//! Calls to whichever variant of an enum there is (of no paper): enums of parts with the same methods, such as transports.

/// Defines a macro `either!(value, part => call)`, which calls the same method of whichever variant the value is.
///
/// ```
/// enum Sequence {
///     Vector(Vec<u64>),
///     Slice(&'static [u64]),
/// }
/// squall_fabric::define_either! { $ either: Sequence { Vector, Slice } }
///
/// let sequences = [Sequence::Vector(vec![1, 2]), Sequence::Slice(&[3])];
/// assert_eq!(sequences.iter().map(|one| either!(one, part => part.len())).sum::<usize>(), 3);
/// ```
///
/// The enum is in scope where the macro is used. (`$` is passed because a macro cannot write it into another one.)
#[macro_export]
macro_rules! define_either {
    ($dollar:tt $either:ident: $kind:ident { $($variant:ident),+ }) => {
        macro_rules! $either {
            ($dollar value:expr, $dollar part:ident => $dollar call:expr) => {
                match $dollar value {
                    $($kind::$variant($dollar part) => $dollar call,)+
                }
            };
        }
    };
}
