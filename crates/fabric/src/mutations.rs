//! Declares mutations: defects that can be put back into a core, one at a time, to see that a check catches them. A
//! checker that has never failed is not trusted.
//!
//! Outside tests of the crate that uses it, and without that crate's feature `mutations`, which only the simulator's tests
//! switch on, `is_on` is `false` at compile time, and the core holds no trace of this.

/// An enum of mutations, all of them as `ALL`, `is_on` for the core, and `with` for tests.
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

        /// Whether `mutation` is on in this thread.
        #[cfg(any(test, feature = "mutations"))]
        pub(crate) fn is_on(mutation: $mutation) -> bool {
            ACTIVE.get() == Some(mutation)
        }

        /// Whether `mutation` is on: never.
        #[cfg(not(any(test, feature = "mutations")))]
        #[inline]
        pub(crate) const fn is_on(_: $mutation) -> bool {
            false
        }

        /// Runs `run` with `mutation` on, if there is one, in this thread.
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
