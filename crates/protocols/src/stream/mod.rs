//! Streams and packets over one-sided writes, with zero copies when the receiver is ahead and a ring when it is not
//! (EXS §III, fig. 1–8).
//!
//! **State** (table I). Sender: phase `P_s`, sequence `S_s`, free words of the peer's ring `b_s`, adverts `q_A`.
//! Receiver: phase `P_r`, sequence `S_r`, the next advert's estimate `S'_r`, stored bytes `b_r`, and how many of its
//! receives, from the first, are advertised in `P_r` or have lost their adverts (`k_a + k_b`). Both: credits.
//!
//! **Transfers.** A send is written piece by piece, each piece by a write with immediate: *direct* into the memory of
//! the peer's head receive if an advert for it is there, else *indirect* into the peer's ring, from where the peer
//! copies. Phases are even during direct runs and odd during indirect ones, and order adverts with respect to them.
//!
//! **Step order** of one evaluation:
//! 1. *Arrivals*: a direct transfer fills the head receive; an indirect one goes into the ring and voids all adverts.
//! 2. *Copies*: from the ring to receives, in order; freed words are given back.
//! 3. *Messages*: adverts, freed words, credits, and what ends or takes back.
//! 4. *Transfers*: as long as there are credits, and adverts or space.
//!
//! **Invariants.**
//! - \[E1\] A direct transfer lands only in the head receive.
//! - \[E2\] When the ring is empty and a phase begins, `S'_r = S_r`: direct transfer resumes in bounded time.
//! - \[E3\] The first direct transfer of a phase is at `S_A = S_s`.
//! - \[E4\] Adverts carry even phases; phases and sequences have 64 bits.
//! - \[E5\] A transfer never exceeds the free words of the ring that lie in a row.
//! - \[E6\] The last credits are reserved for messages, the very last for returning credits.
//! - \[E7\] `wait_all` holds across direct and indirect parts; cancel, half-close and close work with adverts out.
//! - \[E8\] Bytes out are bytes in, under every interleaving.
//! - \[E9\] Packets keep their boundaries; one that is longer than its receive is reported and waits for the next.
//! - \[E10\] With a ring of the size of bandwidth times delay, buffered transfer keeps a long pipe full.
//!
//! **Why renewal is safe.** With [`StreamSettings::renewal`] a receiver whose ring is empty advertises its outstanding
//! receives again, in a new phase, the head at exactly `S_r`. If the sender still is at `S_s = S_r`, nothing is under
//! way, and the head receive stays the head until a direct transfer under this very advert fills it. If not, `S_s` is
//! greater, and the sender drops the advert and with it its phase (fig. 8); what was under way was indirect (lemma 3)
//! and brings the receiver to the next phase as well. Older adverts of the same receives have lower phases.
//!
//! **Taking adverts back.** The receiver asks, the sender forgets all adverts and answers. The answer counts as an
//! indirect transfer of no bytes at both ends, so all that holds for phases holds for it.
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
