//! A connection on which an exchange ends in time, however slowly its bytes arrive, or as long as something arrives.

use std::io::{Error, ErrorKind, Read, Result, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// A stream whose reads and writes fail once a time limit has passed.
#[derive(Debug)]
pub(crate) struct DeadlineStream<S> {
    stream: S,
    limit: TimeLimit,
}

#[derive(Clone, Copy, Debug)]
enum TimeLimit {
    /// For the whole exchange, which ends at that time.
    Exchange(Duration, Instant),
    /// For each read and each write: as long as bytes pass, there is no end.
    Silence(Duration),
}

impl<S> DeadlineStream<S> {
    /// Begins an exchange that may take as long as `patience`.
    pub(crate) fn new(stream: S, patience: Duration) -> Self {
        Self { stream, limit: TimeLimit::Exchange(patience, Instant::now() + patience) }
    }

    /// A stream on which nothing may pass for as long as `silence`.
    pub(crate) const fn without_silence(stream: S, silence: Duration) -> Self {
        Self { stream, limit: TimeLimit::Silence(silence) }
    }

    pub(crate) const fn stream(&self) -> &S {
        &self.stream
    }

    /// The remaining time.
    fn left(&self) -> Result<Option<Duration>> {
        match self.limit {
            TimeLimit::Silence(silence) => Ok(Some(silence)),
            TimeLimit::Exchange(_, end) => {
                let left = end.saturating_duration_since(Instant::now());
                if left.is_zero() { Err(self.late()) } else { Ok(Some(left)) }
            }
        }
    }

    fn late(&self) -> Error {
        let text = match self.limit {
            TimeLimit::Exchange(patience, _) => format!("no answer within {:.0} s", patience.as_secs_f64()),
            TimeLimit::Silence(silence) => format!(
                "nothing has come from the other end for {:.0} s: it has stopped, or the network to it is interrupted",
                silence.as_secs_f64()
            ),
        };
        Error::new(ErrorKind::TimedOut, text)
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

    fn pair() -> (Arc<TcpStream>, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let far = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (Arc::new(listener.accept().unwrap().0), far)
    }

    /// Each byte arrives in time, and all together do not.
    #[test]
    fn a_trickle_does_not_prolong_an_exchange() {
        let (near, mut far) = pair();
        let dripping = std::thread::spawn(move || {
            while far.write_all(b"x").is_ok() {
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        let begun = Instant::now();
        let mut near = DeadlineStream::new(near, Duration::from_millis(300));
        let error = near.read_exact(&mut [0; 10_000]).unwrap_err();
        assert_eq!((error.kind(), error.to_string().as_str()), (ErrorKind::TimedOut, "no answer within 0 s"));
        assert!(begun.elapsed() >= Duration::from_millis(250), "{:?}", begun.elapsed());
        drop(near);
        dripping.join().unwrap();
    }

    /// A peer that reads nothing ends an exchange like one that sends nothing.
    #[test]
    fn a_full_connection_ends_an_exchange() {
        let (near, _far) = pair();
        for mut near in [
            DeadlineStream::new(Arc::clone(&near), Duration::from_millis(200)),
            DeadlineStream::without_silence(near, Duration::from_millis(200)),
        ] {
            assert_eq!(near.write_all(&vec![0; 64 << 20]).unwrap_err().kind(), ErrorKind::TimedOut);
        }
    }

    /// Where only silence counts, an exchange takes as long as bytes come.
    #[test]
    fn progress_is_never_judged_by_a_timer() {
        let (near, mut far) = pair();
        let mut near = DeadlineStream::without_silence(near, Duration::from_millis(500));
        let dripping = std::thread::spawn(move || {
            for _ in 0..20 {
                far.write_all(b"x").unwrap();
                std::thread::sleep(Duration::from_millis(50));
            }
            far
        });
        near.read_exact(&mut [0; 20]).unwrap();
        let error = near.read_exact(&mut [0; 1]).unwrap_err();
        assert!(error.to_string().contains("nothing has come from the other end"), "{error}");
        dripping.join().unwrap();
    }
}
