//! The undelivered backlog of a window whose view ends: messages that the next view's window takes over
//! (Derecho §3.4).

use std::sync::Arc;

use super::{HEADER_WORDS, ReserveError, Shared, WindowGeometry, WindowHeader, WindowWriter};
use crate::Region;
use crate::atomics::Ordering;

/// The committed messages of a closed window, from a given one on, in order. The [`WindowWriter`] may still
/// commit what it had reserved or begun a burst of when the window was closed; the backlog includes that.
#[derive(Debug)]
pub struct WindowBacklog {
    pub(super) region: Region,
    pub(super) geometry: WindowGeometry,
    pub(super) shared: Arc<Shared>,
    /// The next record to take; `next <= ready`.
    pub(super) next: u64,
    /// The bodies of the large messages among them.
    pub(super) bodies: Option<Box<WindowBacklog>>,
}

impl WindowBacklog {
    /// Moves messages to another window of the same geometry while it has space and is open; returns their
    /// number.
    ///
    /// # Panics
    /// Panics if the other window cannot hold messages of this length.
    pub fn move_into(&mut self, writer: &mut WindowWriter) -> u64 {
        let before = self.next;
        for _ in 0..self.left() {
            let header = WindowHeader::from_word(self.region.load_relaxed(self.place()));
            let (length, is_large) = (header.length(), header.is_large());
            let source = if is_large { self.bodies.as_deref().expect("large messages") } else { &*self };
            match writer.reserve_uncleared(length) {
                Ok(mut message) => {
                    let payload = source.place() + HEADER_WORDS;
                    // SAFETY: the record is committed, and nothing writes a committed record of a closed
                    // window.
                    message.copy_from_slice(unsafe { source.region.bytes(payload, length) });
                    message.commit();
                }
                // If the next window is closed too, the window after it takes over its messages.
                Err(ReserveError::Full | ReserveError::Closed) => break,
                Err(error) => panic!("the next window must hold the messages of the last one: {error}"),
            }
            if let Some(bodies) = self.bodies.as_mut().filter(|_| is_large) {
                bodies.next += 1;
            }
            self.next += 1;
        }
        self.next - before
    }

    /// Returns the number of messages that are still to be moved.
    #[must_use]
    pub fn left(&self) -> u64 {
        // SYNC: pairs with the release in `Reservation::commit`.
        self.shared.ready.0.load(Ordering::Acquire) - self.next
    }

    /// Returns where the next record begins.
    fn place(&self) -> usize {
        self.geometry.first + self.shared.start(self.next)
    }

    /// Returns whether all messages are moved and no more can follow, since the window's [`WindowWriter`] has
    /// been dropped.
    #[must_use]
    pub fn is_done(&self) -> bool {
        // SYNC: pairs with the release in `WindowWriter::drop`: its last commit is visible.
        let retired = self.shared.retired.load(Ordering::Acquire);
        retired && self.shared.ready.0.load(Ordering::Relaxed) == self.next
    }
}

#[cfg(test)]
mod tests {
    use super::super::{WindowPublisher, WindowReader};
    use super::*;
    use crate::{RegionId, trusted};

    fn ring(id: u64) -> (Region, WindowGeometry, WindowWriter, WindowPublisher) {
        let geometry = WindowGeometry::new(3, 4, 8, 1000);
        let region = Region::heap(RegionId(id), 3 + geometry.words());
        let (writer, publisher) = trusted::window(&region, geometry, None);
        (region, geometry, writer, publisher)
    }

    /// [V7] the backlog of a closed window continues in the next one: once, in order, with the message that
    /// was still under construction.
    #[test]
    fn the_backlog_of_a_window_moves_into_the_next() {
        let (_, _, mut writer, mut publisher) = ring(1);
        let (region, geometry, mut next, mut next_publisher) = ring(2);
        for number in 0..2_u8 {
            writer.send(1, |bytes| bytes[0] = number).unwrap();
            publisher.publish(u64::MAX, |_| ());
            publisher.raise(2 * u64::from(number) + 2);
        }
        writer.send(1, |bytes| bytes[0] = 2).unwrap();
        let late = writer.reserve(1).unwrap();
        publisher.close();
        // Indexes: message 0, null, message 1, null; the backlog begins after message 0 and its null.
        let mut backlog = publisher.backlog(2);
        assert_eq!(backlog.move_into(&mut next), 2);
        late.commit();
        assert!(!backlog.is_done());
        assert_eq!(writer.reserve(1).err(), Some(ReserveError::Closed));
        drop(writer);
        assert!(!backlog.is_done(), "the late message is not moved");
        assert_eq!((backlog.move_into(&mut next), backlog.is_done()), (1, true));
        next_publisher.publish(u64::MAX, |_| ());
        let mut reader = WindowReader::new(&region, geometry);
        for index in 0..3_u64 {
            let record = reader.take(index, next_publisher.announcement()).unwrap().unwrap();
            let expected = [1, 2, 0][usize::try_from(index).unwrap()];
            assert!(index == 2 || trusted::payload(&reader, record) == [expected]);
        }
    }
}
