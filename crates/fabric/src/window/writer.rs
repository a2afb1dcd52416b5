//! The application's end of a window: reserve, fill, commit (Spindle §2.3, §3.1).

use std::sync::Arc;

use super::probe::WriterProbes;
use super::{HEADER_WORDS, Payload, ReserveError, Shared, WindowGeometry, WindowHeader, mask, record_words};
use crate::Region;
use crate::atomics::Ordering;
use crate::copy::LINE_WORDS;

/// The application's end of a window. Owned by one thread at a time.
#[derive(Debug)]
pub struct WindowWriter {
    region: Region,
    geometry: WindowGeometry,
    pub(super) shared: Arc<Shared>,
    /// Records committed; `freed <= ready <= reserved <= freed + records_max`, where `ready` are those that the polling
    /// thread may see.
    pub(super) reserved: u64,
    /// Records freed, as last seen.
    freed: u64,
    /// Where the next record begins; below the capacity.
    head: usize,
    /// Where record `freed` begins, or will begin; kept here to save a load of `starts` for each message.
    tail: usize,
    /// The ring of the bodies of large messages; it has none itself.
    bodies: Option<Box<WindowWriter>>,
    pub(super) probes: WriterProbes,
}

impl WindowWriter {
    pub(super) fn new(region: &Region, geometry: WindowGeometry, shared: Arc<Shared>) -> Self {
        let region = region.clone();
        let probes = WriterProbes::default();
        Self { region, geometry, shared, reserved: 0, freed: 0, head: 0, tail: 0, bodies: None, probes }
    }

    pub(super) fn take_bodies(&mut self, ring: Self) {
        self.bodies = Some(Box::new(ring));
    }

    /// Returns the length in bytes of the longest message, including large ones.
    #[must_use]
    pub fn message_max(&self) -> usize {
        self.bodies.as_ref().map_or(self.geometry.message_max, |bodies| bodies.geometry.message_max)
    }

    /// Reserves a message of `length` zero bytes, to be filled in place. Dropping the reservation cancels it.
    ///
    /// # Errors
    /// Returns [`ReserveError`]: try again when members have delivered, send something shorter, or stop.
    #[inline]
    pub fn reserve(&mut self, length: usize) -> Result<Reservation<'_>, ReserveError> {
        let mut reservation = self.reserve_uncleared(length)?;
        reservation.fill(0);
        Ok(reservation)
    }

    /// Same as [`WindowWriter::reserve`], for messages that are written completely: the bytes are those of an
    /// earlier message.
    #[inline(always)]
    pub(super) fn reserve_uncleared(&mut self, length: usize) -> Result<Reservation<'_>, ReserveError> {
        if length > self.geometry.message_max {
            return self.reserve_large(length);
        }
        self.reserve_record(record_words(length))?;
        Ok(Reservation { writer: self, length })
    }

    /// Returns whether a message of `length` bytes can be sent now: then the next one of this length is. For messages that
    /// are written into several windows, or into none.
    ///
    /// # Errors
    /// Same as [`WindowWriter::reserve`].
    #[inline]
    pub fn check_space(&mut self, length: usize) -> Result<(), ReserveError> {
        self.reserve_uncleared(length).map(drop)
    }

    /// Finds space at `head` for a record of `words` words.
    #[inline(always)]
    fn reserve_record(&mut self, words: usize) -> Result<(), ReserveError> {
        if self.shared.is_closed() {
            return Err(ReserveError::Closed);
        }
        if !self.finds_space(words) {
            return Err(self.starve());
        }
        Ok(())
    }

    /// Reserves a message whose bytes are stored among the bodies.
    #[cold]
    fn reserve_large(&mut self, length: usize) -> Result<Reservation<'_>, ReserveError> {
        let message_max = self.message_max();
        let Some(bodies) = self.bodies.as_mut().filter(|_| length <= message_max) else {
            return Err(ReserveError::TooLong { length, message_max });
        };
        if self.shared.is_closed() {
            return Err(ReserveError::Closed);
        }
        if !(bodies.finds_space(record_words(length)) && self.finds_space(HEADER_WORDS)) {
            return Err(self.starve());
        }
        Ok(Reservation { writer: self, length })
    }

    /// Finds space for the bytes of a large message among the bodies.
    #[cold]
    fn reserve_body(&mut self, length: usize) -> Result<&mut [u8], ReserveError> {
        let (region, start) = self.reserve_large(length)?.into_place();
        // SAFETY: `reserve_large` guarantees that these words are freed, and only this writer may write them.
        Ok(unsafe { region.bytes_mut(start, length) })
    }

    #[cold]
    fn starve(&self) -> ReserveError {
        if self.shared.ready.0.load(Ordering::Relaxed) < self.reserved {
            self.store_ready();
        }
        self.shared.starved.store(true, Ordering::Relaxed);
        ReserveError::Full
    }

    /// Returns whether there is space for a record of `words` words, after reloading `freed` if necessary.
    #[inline]
    fn finds_space(&mut self, words: usize) -> bool {
        self.has_space(words) || {
            // SYNC: pairs with the release in `WindowPublisher::free`: all readers have finished with what is
            // freed.
            self.freed = self.shared.freed.0.load(Ordering::Acquire);
            self.tail = if self.freed == self.reserved { self.head } else { self.shared.start(self.freed) };
            self.has_space(words)
        }
    }

    /// Reserves, fills and commits a message.
    ///
    /// # Errors
    /// Same as [`WindowWriter::reserve`].
    #[inline]
    pub fn send(&mut self, length: usize, fill: impl FnOnce(&mut [u8])) -> Result<(), ReserveError> {
        let mut reservation = self.reserve(length)?;
        fill(&mut reservation);
        reservation.commit();
        Ok(())
    }

    /// Reserves, writes and commits a message that `write` writes from its beginning on. Nothing is cleared
    /// first, so long messages cost less than with [`WindowWriter::send`].
    ///
    /// # Errors
    /// Same as [`WindowWriter::reserve`].
    #[inline]
    pub fn send_written(
        &mut self,
        length: usize,
        write: impl FnOnce(&mut Payload<'_>),
    ) -> Result<(), ReserveError> {
        self.add_written(length, write)?;
        self.show();
        Ok(())
    }

    /// Same as [`WindowWriter::send_written`], but the polling thread sees the message only after
    /// [`WindowWriter::show`], or with the next message that is sent otherwise. So a burst costs one release store.
    ///
    /// # Errors
    /// Same as [`WindowWriter::reserve`]. If the window is full, the messages before are shown, since space comes only when
    /// they are delivered.
    #[inline(always)]
    pub fn add_written(
        &mut self,
        length: usize,
        write: impl FnOnce(&mut Payload<'_>),
    ) -> Result<(), ReserveError> {
        // No reservation, and one place for `write`: they would be kept in memory, and these stores would occupy entries of the
        // processor's store buffer, where the words of the messages wait for cache lines that the readers hold.
        let (is_large, words) = (length > self.geometry.message_max, record_words(length));
        let bytes = if is_large {
            self.reserve_body(length)?
        } else {
            self.reserve_record(words)?;
            // SAFETY: `reserve_record` guarantees that these words are freed, and only this writer may write
            // them.
            unsafe { self.region.bytes_mut(self.geometry.first + self.head + HEADER_WORDS, length) }
        };
        let mut payload = Payload::over(bytes);
        write(&mut payload);
        payload.finish();
        if is_large {
            self.append_large(length);
        } else {
            self.add(length, false, words);
        }
        Ok(())
    }

    /// Shows the polling thread all messages that are committed.
    #[inline]
    pub fn show(&self) {
        if self.shared.ready.0.load(Ordering::Relaxed) == self.reserved {
            // Nothing is new, as after a burst that found no space: then readers still need the lines at `head`.
            return;
        }
        self.store_ready();
        // The readers still have the lines of the next record from the lap before. Until it is written, there is
        // usually the time to fetch them; its stores, and the announcement behind them, would wait for that.
        let next = self.geometry.first + self.head;
        self.region.prefetch_to_store(next);
        self.region.prefetch_to_store(next + LINE_WORDS);
    }

    #[inline]
    fn store_ready(&self) {
        // SYNC: pairs with the acquire in `WindowPublisher::ready`.
        self.shared.ready.0.store(self.reserved, Ordering::Release);
    }

    /// Returns whether the group behind the window has ended.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.shared.is_closed()
    }

    /// Returns whether there is more to do than to send the next message: the window is closed ([`WindowWriter::is_closed`]), or the time
    /// of one of the next messages is wanted ([`WindowWriter::wants_time`]).
    #[inline]
    #[must_use]
    pub fn needs_attention(&self) -> bool {
        self.shared.attention.load(Ordering::Relaxed) != 0
    }

    /// Returns the number of messages committed in this window.
    #[must_use]
    pub const fn committed(&self) -> u64 {
        self.reserved
    }

    /// Returns the number of committed messages that all members have delivered; those are the first ones.
    #[must_use]
    pub fn delivered(&self) -> u64 {
        // SYNC: pairs with the release in `WindowPublisher::free`.
        self.shared.freed.0.load(Ordering::Acquire)
    }

    /// Returns whether there is space for a record of `words` words, according to the last seen `freed`.
    #[inline]
    fn has_space(&self, words: usize) -> bool {
        let outstanding = self.reserved - self.freed;
        debug_assert!(outstanding == 0 || self.tail == self.shared.start(self.freed), "{self:?}");
        outstanding == 0
            || outstanding < self.geometry.records_max as u64
                && (self.head > self.tail || self.head + words <= self.tail)
    }
}

impl Drop for WindowWriter {
    fn drop(&mut self) {
        self.store_ready();
        // SYNC: pairs with the acquire in `WindowBacklog::is_done`.
        self.shared.retired.store(true, Ordering::Release);
    }
}

/// A message under construction, which dereferences to its bytes.
#[derive(Debug)]
pub struct Reservation<'a> {
    writer: &'a mut WindowWriter,
    length: usize,
}

impl Reservation<'_> {
    /// Commits the message: from now on the polling thread may send it.
    #[inline]
    pub fn commit(self) {
        let Self { writer, length } = self;
        if length > writer.geometry.message_max {
            return writer.append_large(length);
        }
        writer.append(length, false, record_words(length));
    }

    /// Returns where the message's bytes are.
    #[inline]
    fn place(&self) -> (&Region, usize) {
        self.writer.place(self.length)
    }
}

impl<'a> Reservation<'a> {
    fn into_place(self) -> (&'a Region, usize) {
        let Self { writer, length } = self;
        writer.place(length)
    }
}

impl WindowWriter {
    /// Commits a record of `words` words, of a message of `length` bytes that are a body if `is_large`, and shows it.
    #[inline]
    fn append(&mut self, length: usize, is_large: bool, words: usize) {
        self.add(length, is_large, words);
        self.show();
    }

    /// Returns where the bytes of the next message are, if it has this length.
    #[inline]
    fn place(&self, length: usize) -> (&Region, usize) {
        let ring = match &self.bodies {
            Some(bodies) if length > self.geometry.message_max => bodies,
            _ => self,
        };
        (&ring.region, ring.geometry.first + ring.head + HEADER_WORDS)
    }

    /// Commits a record, which [`WindowWriter::show`] shows.
    #[inline]
    fn add(&mut self, length: usize, is_large: bool, words: usize) {
        let place = self.geometry.first + self.head;
        let index = self.reserved + self.shared.nulls.0.load(Ordering::Relaxed);
        // SAFETY: `head` is below the capacity, after which there is space for a whole record; `window`
        // checked the access.
        unsafe {
            self.region.store_unchecked(place, WindowHeader::new(index, length, is_large).to_word());
        };
        let slot = mask(self.reserved, self.shared.starts.len());
        self.shared.starts[slot].store(self.head as u64, Ordering::Relaxed);
        self.head = self.geometry.behind(self.head, words);
        self.reserved += 1;
    }

    /// Commits a large message: the body first, so that a thread that sees the record also sees the body.
    #[cold]
    fn append_large(&mut self, length: usize) {
        let bodies = self.bodies.as_mut().expect("reserved there");
        bodies.append(length, false, record_words(length));
        self.append(length, true, HEADER_WORDS);
    }
}

impl std::ops::Deref for Reservation<'_> {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        let (region, start) = self.place();
        // SAFETY: `has_space` guarantees that these words are freed, and only this reservation may write
        // them.
        unsafe { region.bytes(start, self.length) }
    }
}

impl std::ops::DerefMut for Reservation<'_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        let (region, start) = self.place();
        // SAFETY: `has_space` guarantees that these words are freed, and only this reservation may write
        // them.
        unsafe { region.bytes_mut(start, self.length) }
    }
}
