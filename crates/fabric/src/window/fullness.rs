//! Fullness: whether the writer waits for space, seen from time to time.
//!
//! A writer that waits is shown until something is freed, so after an evaluation that frees something the window never looks full,
//! although at full load it is full most of the time. So the first freeing after a question notes what it found; later ones do not
//! look, and a question costs others nothing.

use super::WindowPublisher;

impl WindowPublisher {
    /// Returns whether the writer has waited for space at one moment since the last call: when something was first freed, or now,
    /// if nothing was. Call it periodically: the part of the calls that return `true` is the part of the time.
    pub fn sample_starved(&mut self) -> bool {
        self.found_starved.take().unwrap_or_else(|| self.is_starved())
    }
}

#[cfg(test)]
mod tests {
    use crate::window::WindowGeometry;
    use crate::{Region, RegionId, trusted};

    #[test]
    fn a_writer_that_waits_is_seen_though_it_waits_no_more() {
        let geometry = WindowGeometry::new(0, 4, 8, 4096);
        let region = Region::heap(RegionId(1), geometry.words());
        let (mut writer, mut publisher) = trusted::window(&region, geometry, None);
        let mut send = |count: usize| (0..count).filter(|_| writer.send(8, |_| ()).is_ok()).count();
        assert!(!publisher.sample_starved());
        assert_eq!(send(4), 4);
        publisher.publish(4, |_| ());
        assert!(!publisher.sample_starved(), "full, but no message waits");
        assert_eq!(send(1), 0);
        assert!(publisher.sample_starved() && publisher.sample_starved(), "nothing is freed");
        publisher.free(2);
        assert_eq!(send(2), 2);
        publisher.publish(4, |_| ());
        publisher.free(3);
        assert!(publisher.sample_starved(), "it waited when something was first freed");
        assert!(!publisher.sample_starved(), "and not since then");
        assert_eq!(send(2), 1);
        publisher.publish(4, |_| ());
        publisher.free(4);
        assert!(publisher.sample_starved());
        publisher.free(5);
        assert_eq!(send(5), 2);
        publisher.publish(4, |_| ());
        publisher.free(6);
        assert!(!publisher.sample_starved(), "it did not wait when something was first freed");
    }
}
