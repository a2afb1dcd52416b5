//! Mutations of a reader of a window ([`super::reader`] has the rule): its tests catch them.

crate::mutations! {
    /// A mutation: one part of the rule that is left out.
    pub(super) enum WindowMutation {
        /// The index in the header of a record is not compared.
        AnyIndex,
        /// A record is sure before it is announced.
        SureTooSoon,
        /// Records stay sure: what is announced is not noted again.
        SureForEver,
        /// The next record is looked for behind one of the length before.
        LengthBefore,
        /// A large message is taken for a short one.
        AnyKind,
    }
}
