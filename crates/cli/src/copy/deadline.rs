//! A connection on which an exchange ends in time, however slowly its bytes arrive.

use std::io::{Error, ErrorKind, Read, Result, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// A stream whose reads and writes fail once the time limit of the whole exchange has passed.
#[derive(Debug)]
pub(crate) struct DeadlineStream<S> {
    stream: S,
    /// The time for the exchange, and when it ends; `None`: without a limit.
    limit: Option<(Duration, Instant)>,
}

impl<S> DeadlineStream<S> {
    pub(crate) const fn new(stream: S) -> Self {
        Self { stream, limit: None }
    }

    pub(crate) const fn stream(&self) -> &S {
        &self.stream
    }

    /// Begins an exchange that may take as long as `patience`; without it, forever.
    pub(crate) fn begin(&mut self, patience: Option<Duration>) {
        self.limit = patience.map(|patience| (patience, Instant::now() + patience));
    }

    /// The remaining time.
    fn left(&self) -> Result<Option<Duration>> {
        let Some((_, end)) = self.limit else { return Ok(None) };
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(self.late()) } else { Ok(Some(left)) }
    }

    fn late(&self) -> Error {
        let seconds = self.limit.map_or(0.0, |(patience, _)| patience.as_secs_f64());
        Error::new(ErrorKind::TimedOut, format!("no answer within {seconds:.0} s"))
    }

    fn named(&self, error: Error) -> Error {
        match error.kind() {
            // The system's text for a time-out does not mention time.
            ErrorKind::WouldBlock | ErrorKind::TimedOut => self.late(),
            _ => error,
        }
    }
}

impl<S: AsRef<TcpStream>> Read for DeadlineStream<S> {
    fn read(&mut self, buffer: &mut [u8]) -> Result<usize> {
        let mut stream = self.stream.as_ref();
        stream.set_read_timeout(self.left()?)?;
        stream.read(buffer).map_err(|error| self.named(error))
    }
}

impl<S: AsRef<TcpStream>> Write for DeadlineStream<S> {
    fn write(&mut self, bytes: &[u8]) -> Result<usize> {
        let mut stream = self.stream.as_ref();
        stream.set_write_timeout(self.left()?)?;
        stream.write(bytes).map_err(|error| self.named(error))
    }

    fn flush(&mut self) -> Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::sync::Arc;

    use super::*;

    fn pair() -> (DeadlineStream<Arc<TcpStream>>, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let far = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (DeadlineStream::new(Arc::new(listener.accept().unwrap().0)), far)
    }

    /// Each byte arrives in time, and all together do not.
    #[test]
    fn a_trickle_does_not_prolong_an_exchange() {
        let (mut near, mut far) = pair();
        let dripping = std::thread::spawn(move || {
            while far.write_all(b"x").is_ok() {
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        near.begin(Some(Duration::from_millis(300)));
        let begun = Instant::now();
        let error = near.read_exact(&mut [0; 10_000]).unwrap_err();
        assert_eq!((error.kind(), error.to_string().as_str()), (ErrorKind::TimedOut, "no answer within 0 s"));
        assert!(begun.elapsed() >= Duration::from_millis(250), "{:?}", begun.elapsed());
        drop(near);
        dripping.join().unwrap();
    }

    /// A peer that reads nothing ends an exchange like one that sends nothing.
    #[test]
    fn a_full_connection_ends_an_exchange() {
        let (mut near, _far) = pair();
        near.begin(Some(Duration::from_millis(200)));
        assert_eq!(near.write_all(&vec![0; 64 << 20]).unwrap_err().kind(), ErrorKind::TimedOut);
    }

    #[test]
    fn without_a_limit_an_exchange_waits() {
        let (mut near, mut far) = pair();
        near.begin(None);
        far.write_all(b"ab").unwrap();
        near.read_exact(&mut [0; 2]).unwrap();
    }
}
