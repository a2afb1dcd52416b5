//! Protocol cores: state machines that a runner or the simulator drives.

use crate::{Fabric, FabricEvent, Instant};

/// A protocol core. It owns no clock, thread, random source or socket.
///
/// **Contract.** The driver passes every [`FabricEvent`] of the fabric to [`Core::handle_event`], in the
/// order in which [`Fabric::poll`] yields them, and then calls [`Core::poll`] as often as it likes; `poll`
/// may be called at any time and does everything that is possible now, but a core of many parts may look at idle
/// ones in turn. After a `poll` that looks at everything ([`Core::look_at_all`]) has returned 0, nothing
/// changes until the next event, the next change of memory that the core reads, the next call of one of its
/// own methods, or [`Core::next_deadline`]: so a driver lets the next `poll` look at everything before it sleeps.
pub trait Core<F: Fabric> {
    /// Handles one event of the fabric. A core ignores events that do not concern it.
    fn handle_event(&mut self, fabric: &mut F, event: &FabricEvent);

    /// Does everything that is possible now and returns the amount of work done; 0 means that the core is
    /// idle, as far as it has looked.
    fn poll(&mut self, fabric: &mut F) -> usize;

    /// Lets the next `poll` look at everything; returns false if each one does.
    fn look_at_all(&mut self) -> bool {
        false
    }

    /// Returns the instant at which `poll` should be called even if nothing happens; `None` if never.
    fn next_deadline(&self) -> Option<Instant> {
        None
    }
}
