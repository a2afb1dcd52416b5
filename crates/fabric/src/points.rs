//! Declares the rules and branches of a core that a run can reach, so that a scenario that no longer gets to what it is there
//! for is noticed.
//!
//! Outside tests of the crate that uses it, and without that crate's feature `coverage`, nothing is noted: `reach` is empty, and
//! the core holds no trace of this.

/// An enum of points, all of them as `ALL`, each with what it means; `reach` for the core, `take` for the simulator.
#[macro_export]
macro_rules! points {
    ($vis:vis $points:ident; $($(#[doc = $what:literal])+ $name:ident,)+) => {
        /// A rule or branch that a run can reach.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        #[non_exhaustive]
        $vis enum $points {
            $($(#[doc = $what])+ $name,)+
        }

        impl $points {
            /// All points.
            $vis const ALL: &[Self] = &[$(Self::$name,)+];

            /// What happens there, in a sentence.
            #[must_use]
            $vis const fn about(self) -> &'static str {
                match self {
                    $(Self::$name => concat!($($what),+).trim_ascii(),)+
                }
            }
        }

        /// Whether points are noted.
        pub const IS_ON: bool = cfg!(any(test, feature = "coverage"));

        #[cfg(any(test, feature = "coverage"))]
        thread_local! {
            /// The points that this thread has reached, as a set of bits.
            static REACHED: std::cell::Cell<[u128; 2]> = const { std::cell::Cell::new([0; 2]) };
        }

        /// Notes that this thread has reached `point`.
        #[cfg(any(test, feature = "coverage"))]
        pub(crate) fn reach(point: $points) {
            const { assert!($points::ALL.len() <= 256, "they fit two words") };
            let mut reached = REACHED.get();
            reached[point as usize / 128] |= 1 << (point as u32 % 128);
            REACHED.set(reached);
        }

        /// Notes nothing.
        #[cfg(not(any(test, feature = "coverage")))]
        #[inline(always)]
        pub(crate) const fn reach(_: $points) {}

        /// The points that this thread has reached since it last asked; none where they are not noted.
        pub fn take() -> impl Iterator<Item = $points> {
            #[cfg(any(test, feature = "coverage"))]
            let reached = REACHED.take();
            #[cfg(not(any(test, feature = "coverage")))]
            let reached = [0_u128; 2];
            $points::ALL.iter().copied().filter(move |point| {
                reached[*point as usize / 128] >> (*point as u32 % 128) & 1 == 1
            })
        }
    };
}
