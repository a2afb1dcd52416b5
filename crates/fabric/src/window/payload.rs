//! The bytes of a message under construction, written from beginning to end (Spindle §2.3).

/// The memory of a message, which is written in order and not read, so it need not be cleared first. The part
/// that is not written when the message is sent becomes zeros.
#[derive(Debug)]
pub struct Payload<'m> {
    bytes: &'m mut [u8],
    /// `written <= bytes.len()`.
    written: usize,
}

impl<'m> Payload<'m> {
    /// Creates a payload over `bytes`, whatever their current values.
    #[inline]
    pub const fn over(bytes: &'m mut [u8]) -> Self {
        Self { bytes, written: 0 }
    }

    /// Writes the next bytes.
    ///
    /// # Panics
    /// Panics if the message has less space left.
    #[inline]
    pub fn put(&mut self, bytes: &[u8]) {
        self.next(bytes.len()).copy_from_slice(bytes);
    }

    /// Writes `byte` for the next `count` bytes.
    ///
    /// # Panics
    /// Panics if the message has less space left.
    #[inline]
    pub fn put_repeated(&mut self, byte: u8, count: usize) {
        self.next(count).fill(byte);
    }

    /// Writes zeros for the next `count` bytes, and returns them, to be filled in place.
    ///
    /// # Panics
    /// Panics if the message has less space left.
    #[inline]
    pub fn zeros(&mut self, count: usize) -> &mut [u8] {
        let bytes = self.next(count);
        bytes.fill(0);
        bytes
    }

    /// Returns the number of bytes that are not yet written.
    #[must_use]
    #[inline]
    pub const fn remaining(&self) -> usize {
        self.bytes.len() - self.written
    }

    /// Writes zeros over the part that was not written.
    #[inline]
    pub fn finish(mut self) {
        if self.remaining() > 0 {
            self.put_repeated(0, self.remaining());
        }
    }

    #[inline]
    fn next(&mut self, count: usize) -> &mut [u8] {
        let (first, left) = (self.written, self.remaining());
        if count > left {
            exceeds(count, left);
        }
        self.written += count;
        &mut self.bytes[first..first + count]
    }
}

/// Panics. A separate function, so that the numbers are stored in memory only if it is called.
#[cold]
#[inline(never)]
fn exceeds(count: usize, left: usize) -> ! {
    panic!("{count} bytes where the message has space for {left}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_written_becomes_zeros() {
        let mut bytes = [7; 8];
        let mut payload = Payload::over(&mut bytes);
        payload.put(b"ab");
        payload.put_repeated(b'c', 2);
        let space = payload.zeros(2);
        assert_eq!(space, [0, 0]);
        space[1] = b'd';
        assert_eq!(payload.remaining(), 2);
        payload.finish();
        assert_eq!(&bytes, b"abcc\0d\0\0");
    }

    #[test]
    #[should_panic(expected = "3 bytes where the message has space for 2")]
    fn a_message_is_not_exceeded() {
        let mut bytes = [0; 4];
        let mut payload = Payload::over(&mut bytes);
        payload.put(b"ab");
        payload.put(b"cde");
    }
}
