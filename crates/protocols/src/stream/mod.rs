//! Streams and packets over one-sided writes, without copies while the receiver is ahead and through a ring while it
//! is not (EXS §III, fig. 1–8).
//!
//! **State** (table I). Sender: phase `P_s`, sequence `S_s`, free words of the peer's ring `b_s`, adverts `q_A`.
//! Receiver: phase `P_r`, sequence `S_r`, the next advert's estimate `S'_r`, stored bytes `b_r`, and the numbers of
//! its first receives that are advertised in `P_r` or have lost their adverts (`k_a + k_b`). Both: credits.
//!
//! **Transfers.** A send is written in pieces, each by a write with immediate: *direct* into the memory of the peer's
//! head receive if there is an advert for it, otherwise *indirect* into the peer's ring, from which the peer copies.
//! Phases are even during direct runs and odd during indirect runs, and order adverts with respect to the runs.
//!
//! **Step order** of one evaluation:
//! 1. *Arrivals*: a direct transfer fills the head receive; an indirect transfer goes into the ring and voids all
//!    adverts.
//! 2. *Copies*: from the ring to receives, in order; the freed words are returned to the sender.
//! 3. *Messages*: adverts, freed words, credits, withdrawals and ends of streams.
//! 4. *Transfers*: as long as there are credits, and adverts or space in the ring.
//!
//! **Invariants.**
//! - \[E1\] A direct transfer lands only in the head receive.
//! - \[E2\] When the ring is empty and a phase begins, `S'_r = S_r`, so direct transfer resumes in bounded time.
//! - \[E3\] The first direct transfer of a phase is at `S_A = S_s`.
//! - \[E4\] Adverts carry even phases; phases and sequences have 64 bits.
//! - \[E5\] A transfer never exceeds the contiguous free words of the ring.
//! - \[E6\] The last credits are reserved for messages, and the very last one for a message that returns credits.
//! - \[E7\] `wait_all` holds across direct and indirect parts; cancel, half-close and close work while adverts are
//!   outstanding.
//! - \[E8\] The bytes received are the bytes sent, under every interleaving.
//! - \[E9\] Packets keep their boundaries; a packet that is longer than its receive is reported and waits for the
//!   next receive.
//! - \[E10\] With a ring of the size of the bandwidth-delay product, buffered transfer keeps a long pipe full.
//!
//! **Why renewal is safe.** With [`StreamSettings::renewal`] a receiver whose ring is empty advertises its
//! outstanding receives again, in a new phase, the head at exactly `S_r`. If the sender is still at `S_s = S_r`,
//! nothing is in flight, and the head receive remains the head until a direct transfer under this very advert fills
//! it. Otherwise `S_s` is greater, and the sender drops the advert and with it the advert's phase (fig. 8); the data
//! in flight was indirect (lemma 3) and moves the receiver to the next phase as well. Older adverts of the same
//! receives have lower phases.
//!
//! **Withdrawing adverts.** The receiver asks, and the sender forgets all adverts and answers. The answer counts as
//! an indirect transfer of no bytes at both ends, so everything that holds for phases holds for it.
//!
//! `Deviation:`s are collected in docs/papers/exs.md.

mod advert;
mod completion;
mod copy;
mod credits;
mod end;
mod hello;
mod message;
mod mutation;
mod patience;
mod phase;
mod posting;
mod receiver;
mod renewal;
mod ring;
mod send_path;
mod sender;
mod settings;
mod socket;
mod statistics;
mod transfer;
mod violation;

#[cfg(test)]
mod tests;

pub use advert::Advert;
pub use completion::{
    Completion, PostRefused, ReceiveId, ReceiveOutcome, SendId, SendOutcome, SocketFailure,
};
pub use credits::CREDITS_MIN;
pub use end::{PeerParameters, StreamEnd, StreamOutput};
#[doc(hidden)]
pub use hello::read_foreign;
pub use message::{ADVERTS_PER_MESSAGE, MESSAGE_BYTES_MAX, StreamMessage};
pub use phase::Phase;
pub use receiver::{ReceiveMemory, RingCopy};
pub use settings::{
    CREDITS_MAX, RING_WORDS_MAX, SocketKind, StreamSettings, StreamSettingsError, TransferPolicy,
};
pub use socket::SocketCore;
pub use statistics::Statistics;
pub use transfer::{StreamTransfer, TRANSFER_BYTES_MAX, TransferArrival, TransferRoute};
pub use violation::StreamViolation;
