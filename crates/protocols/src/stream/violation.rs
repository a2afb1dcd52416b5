//! Violations of the protocol by a peer (EXS fig. 2–5). The peer is disconnected, with the reason.

use std::fmt;

/// How the peer violated the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StreamViolation {
    /// A malformed message.
    Garbled,
    /// A different kind, policy or version at the peer.
    Mismatch,
    /// An advert with an indirect phase \[E4\].
    AdvertPhase,
    /// An advert whose phase or sequence number does not follow \[E3\].
    AdvertOrder,
    /// More adverts than receives.
    AdvertsTooMany,
    /// An advert of no memory, or of memory beyond its grant.
    AdvertLength,
    /// A direct transfer that no advert permits, or that is longer than the head receive \[E1\].
    DirectUnexpected,
    /// An indirect transfer that does not fit the ring, or under a policy without a ring \[E5\].
    RingOverrun,
    /// A transfer of no bytes in a stream.
    EmptyTransfer,
    /// More words of the ring freed than were in use.
    FreedTooMuch,
    /// More credits returned than were used.
    CreditsTooMany,
    /// A post without a credit.
    WithoutCredit,
    /// Data after the end of the stream.
    AfterEnd,
    /// An answer without a request.
    Unasked,
}

impl fmt::Display for StreamViolation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Garbled => "it sent a malformed message",
            Self::Mismatch => "it runs another version, kind of socket or policy: use the same version and settings at both ends",
            Self::AdvertPhase => "it advertised memory in an indirect phase",
            Self::AdvertOrder => "it advertised memory out of order",
            Self::AdvertsTooMany => "it advertised more receives than it announced",
            Self::AdvertLength => "it advertised memory that it did not grant",
            Self::DirectUnexpected => "it wrote to memory that was not advertised",
            Self::RingOverrun => "it overran the ring",
            Self::EmptyTransfer => "it sent an empty transfer",
            Self::FreedTooMuch => "it freed more of its ring than was in use",
            Self::CreditsTooMany => "it returned more credits than were used",
            Self::WithoutCredit => "it posted more than its credits allow",
            Self::AfterEnd => "it sent data after the end of its stream",
            Self::Unasked => "it sent an answer without a request",
        })
    }
}

impl std::error::Error for StreamViolation {}
