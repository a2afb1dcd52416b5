//! Declares mutations: errors that can be put into a core, one at a time, to verify that a check catches them. A checker
//! that has never failed is not trusted.
//!
//! The code of a protocol names a mutation with `mutant!`, in one of two forms. A statement of its own says what the mutant
//! does there, instead or in addition; the code without these lines is the protocol. Inside a condition it is a term:
//!
//! ```text
//! let mut least = columns.min();
//! mutant!(ReuseAfterOwnDelivery => least = own);
//! let is_held = held.contains(block) || mutant!(SendUnheld);
//! ```
//!
//! Outside tests of the crate that uses them, and without that crate's feature `mutations`, which only the simulator's tests
//! enable, both are `false` at compile time, and the compiled core contains no trace of them.

/// Returns whether a mutation of the module `mutation` in scope is on; or does something if it is, and if a condition holds.
#[macro_export]
macro_rules! mutant {
    ($name:ident) => {
        mutation::is_on(mutation::Mutation::$name)
    };
    ($name:ident $(if $also:expr)? => $does:expr) => {
        if $crate::mutant!($name) $(&& $also)? {
            $does;
        }
    };
}

/// Defines an enum of mutations, the list `ALL` of them, `is_on` for the core, and `with` for tests.
#[macro_export]
macro_rules! mutations {
    ($(#[$about:meta])* $vis:vis enum $mutation:ident { $($(#[$what:meta])* $name:ident,)+ }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[non_exhaustive]
        #[cfg_attr(
            not(any(test, feature = "mutations")),
            allow(dead_code, unreachable_pub, reason = "only tests switch mutations on")
        )]
        $vis enum $mutation {
            $($(#[$what])* $name,)+
        }

        pub(super) use $mutation as Mutation;

        #[cfg(any(test, feature = "mutations"))]
        #[allow(dead_code, reason = "some tests name those that they look for")]
        impl $mutation {
            /// All mutations.
            $vis const ALL: &[Self] = &[$(Self::$name,)+];
        }

        #[cfg(any(test, feature = "mutations"))]
        thread_local! {
            static ACTIVE: std::cell::Cell<Option<$mutation>> = const { std::cell::Cell::new(None) };
        }

        /// Returns whether `mutation` is on in this thread.
        #[cfg(any(test, feature = "mutations"))]
        pub(crate) fn is_on(mutation: $mutation) -> bool {
            ACTIVE.get() == Some(mutation)
        }

        /// Returns false: no mutation can be on.
        #[cfg(not(any(test, feature = "mutations")))]
        #[inline]
        pub(crate) const fn is_on(_: $mutation) -> bool {
            false
        }

        /// Calls `run` with `mutation` on in this thread, if there is one.
        #[cfg(any(test, feature = "mutations"))]
        #[allow(dead_code, reason = "some mutations are switched on by the simulator's tests only")]
        $vis fn with<T>(mutation: impl Into<Option<$mutation>>, run: impl FnOnce() -> T) -> T {
            struct Off;
            impl Drop for Off {
                fn drop(&mut self) {
                    ACTIVE.set(None);
                }
            }
            ACTIVE.set(mutation.into());
            let _off = Off;
            run()
        }
    };
}
