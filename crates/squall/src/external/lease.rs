//! A member's sending end of a subgroup: the application's, or lent to external clients until the application takes it.

use crate::error::SendError;
use crate::handle::sender::Sender;

/// The holder of the sending end.
#[derive(Debug, Default)]
pub(crate) enum SenderLease {
    /// It has not been used yet.
    #[default]
    Free,
    /// External clients send through it.
    External(Sender),
    /// The application has taken it.
    Application,
}

impl SenderLease {
    /// Takes the sending end for the application, from external clients if necessary; returns `None` if the
    /// application already has it.
    pub(crate) fn take(&mut self, make: impl FnOnce() -> Sender) -> Option<Sender> {
        match std::mem::replace(self, Self::Application) {
            Self::Free => Some(make()),
            Self::External(sender) => Some(sender),
            Self::Application => None,
        }
    }

    pub(super) const fn is_taken(&self) -> bool {
        matches!(self, Self::Application)
    }

    /// Returns the sending end for external clients, if the application has not taken it.
    pub(super) fn lend(&mut self, make: impl FnOnce() -> Sender) -> Option<&mut Sender> {
        if matches!(self, Self::Free) {
            *self = Self::External(make());
        }
        match self {
            Self::External(sender) => Some(sender),
            Self::Free | Self::Application => None,
        }
    }

    /// Sends a message for a client; returns its number by the sender's count, or `None` if the application has taken
    /// the sending end.
    pub(super) fn send(
        &mut self,
        make: impl FnOnce() -> Sender,
        bytes: &[u8],
    ) -> Option<Result<u64, SendError>> {
        let sender = self.lend(make)?;
        Some(sender.send_bytes(bytes).map(|()| sender.sent() - 1))
    }
}
