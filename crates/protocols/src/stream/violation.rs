//! Violations: what a peer does that the algorithm rules out (EXS fig. 2–5). It is disconnected, with the reason.

use std::fmt;

/// How the peer broke the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StreamViolation {
    /// A message that cannot be read.
    Garbled,
    /// The peer runs with another kind, policy or version.
    Mismatch,
    /// An advert with an indirect phase \[E4\].
    AdvertPhase,
    /// An advert whose phase or sequence number does not follow \[E3\].
    AdvertOrder,
    /// More adverts than receives.
    AdvertsTooMany,
    /// An advert without memory, or beyond its grant.
    AdvertLength,
    /// A direct transfer that no advert allows, or that is longer than the head receive \[E1\].
    DirectUnexpected,
    /// An indirect transfer that does not fit the ring, or where the policy has no ring \[E5\].
    RingOverrun,
    /// A transfer of no bytes in a stream.
    EmptyTransfer,
    /// More words of the ring given back than were in use.
    FreedTooMuch,
    /// More credits returned than were used.
    CreditsTooMany,
    /// A post without credit.
    WithoutCredit,
    /// Data after the end of the stream.
    AfterEnd,
    /// An answer to something that was not asked.
    Unasked,
}

impl fmt::Display for StreamViolation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Garbled => "it sent a message that cannot be read",
            Self::Mismatch => "it runs another version, kind of socket or policy: start both ends alike",
            Self::AdvertPhase => "it advertised memory in an indirect phase",
            Self::AdvertOrder => "it advertised memory out of order",
            Self::AdvertsTooMany => "it advertised more receives than it may have",
            Self::AdvertLength => "it advertised memory that it did not grant",
            Self::DirectUnexpected => "it wrote to memory that was not advertised",
            Self::RingOverrun => "it overran the ring",
            Self::EmptyTransfer => "it wrote an empty transfer",
            Self::FreedTooMuch => "it freed more of its ring than was in use",
            Self::CreditsTooMany => "it returned more credits than were used",
            Self::WithoutCredit => "it posted more than its credits allow",
            Self::AfterEnd => "it sent data after the end of its stream",
            Self::Unasked => "it answered what was not asked",
        })
    }
}

impl std::error::Error for StreamViolation {}
