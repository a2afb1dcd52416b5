//! What a reader of the RTPS domain yields: samples as RustDDS hands them over, those that it withholds, and which writers there are.
//!
//! Of a reliable topic, the samples that have come are looked at through a second reader of the same cache ([`crate::rtps`]), every
//! [`LOOK_PERIOD`] and when a writer has gone: [`WithheldSamples`] says which of them are still to be handed over.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use futures::stream::{Stream, StreamExt as _};

use crate::rtps::{CachedSamples, RtpsNews, RtpsPeerNews};
use crate::withheld::WithheldSamples;

pub(crate) type RtpsStream = Pin<Box<dyn Stream<Item = RtpsNews> + Send>>;

/// The receiving end of a topic of the RTPS domain.
pub(crate) struct RtpsInbox {
    /// What RustDDS hands over. It never ends.
    news: RtpsStream,
    /// Of a reliable topic.
    cached: Option<CachedSamples>,
    withheld: WithheldSamples<Option<Vec<u8>>>,
    looked: Instant,
    /// What comes before the next of `news`.
    ready: VecDeque<RtpsNews>,
    came: Arc<InboxBell>,
}

impl RtpsInbox {
    /// `read_ahead`: how many samples RustDDS holds, in the cache of the topic and in its reader.
    pub(crate) fn new(news: RtpsStream, cached: Option<CachedSamples>, read_ahead: usize) -> Self {
        let (ready, came) = Default::default();
        let withheld = WithheldSamples::new(2 * read_ahead + CACHE_SLACK);
        Self { news, cached, withheld, looked: Instant::now(), ready, came }
    }

    /// Returns what comes next, if that is within `timeout`.
    pub(crate) fn next(&mut self, timeout: Duration) -> Option<RtpsNews> {
        let waker = Waker::from(Arc::clone(&self.came));
        let (mut context, begun) = (Context::from_waker(&waker), Instant::now());
        loop {
            if self.looked.elapsed() >= LOOK_PERIOD {
                self.look();
                let overdue = self.withheld.release_overdue(self.looked);
                let news = overdue.into_iter();
                self.ready.extend(news.map(|(writer, number, cdr)| RtpsNews::Sample { cdr, writer, number }));
            }
            if let Some(news) = self.ready.pop_front() {
                return Some(news);
            }
            match self.news.poll_next_unpin(&mut context) {
                Poll::Ready(Some(news)) => self.admit(news),
                Poll::Ready(None) | Poll::Pending => {
                    let left = timeout.checked_sub(begun.elapsed()).filter(|left| !left.is_zero())?;
                    self.came.wait(left.min(LOOK_PERIOD));
                }
            }
        }
    }

    fn admit(&mut self, news: RtpsNews) {
        match &news {
            RtpsNews::Sample { writer, number, .. }
                if self.cached.is_some() && !self.withheld.admit(*writer, *number) =>
            {
                return;
            }
            RtpsNews::Peer(RtpsPeerNews::Went(writer)) if self.cached.is_some() => {
                let writer = *writer;
                self.look();
                let left = self.withheld.release(writer).into_iter();
                self.ready.extend(left.map(|(number, cdr)| RtpsNews::Sample { cdr, writer, number }));
            }
            _ => {}
        }
        self.ready.push_back(news);
    }

    /// Looks at the samples that have come since the last look.
    fn look(&mut self) {
        self.looked = Instant::now();
        for news in self.cached.iter_mut().flat_map(CachedSamples::take) {
            if let RtpsNews::Sample { cdr, writer, number } = news {
                self.withheld.hold(writer, number, cdr, self.looked);
            }
        }
    }
}

/// Rung when something has come.
#[derive(Debug, Default)]
struct InboxBell {
    is_rung: Mutex<bool>,
    rung: Condvar,
}

impl InboxBell {
    /// Waits until it is rung, or has been since the last wait.
    fn wait(&self, timeout: Duration) {
        let is_rung = self.is_rung.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.rung.wait_timeout_while(is_rung, timeout, |is_rung| !*is_rung);
        *waited.unwrap_or_else(PoisonError::into_inner).0 = false;
    }
}

impl Wake for InboxBell {
    fn wake(self: Arc<Self>) {
        *self.is_rung.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.rung.notify_one();
    }
}

/// Between looks at the samples that have come.
const LOOK_PERIOD: Duration = Duration::from_millis(100);
/// RustDDS looks whether a cache is full once in as many samples.
const CACHE_SLACK: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rtps::{RtpsParticipant, RtpsTopic, prefix_of};
    use crate::settings::BridgeSettings;

    const COUNT: i64 = 5;
    const SOON: Duration = Duration::from_secs(60);

    fn await_news(inbox: &mut RtpsInbox, wanted: impl Fn(&RtpsNews) -> bool) {
        let begun = Instant::now();
        while !inbox.next(Duration::from_millis(10)).is_some_and(|news| wanted(&news)) {
            assert!(begun.elapsed() < SOON, "it does not come");
        }
    }

    /// Returns the numbers of the samples that come, `is_due` being whether the second reader of the cache is there, after a writer has had
    /// them confirmed and has gone before one was taken.
    fn numbers_of_writer_that_has_gone(is_keyed: bool, is_due: bool) -> Vec<i64> {
        let text = format!("[topics.line]\ntype = \"Line\"\nform = \"text\"\nkeyed = {is_keyed}");
        let mut settings: BridgeSettings = toml::from_str(&text).expect("they are settings");
        // Runs at the same time must not meet, nor must the tests of one run.
        let run = u16::try_from(std::process::id() % 57).expect("it is small");
        settings.rtps_domain = run * 4 + u16::from(is_due) * 2 + u16::from(is_keyed);
        settings.networks = vec![[127, 0, 0, 1].into()];
        let participants = [(); 2].map(|()| RtpsParticipant::new(&settings).expect("a participant"));
        let topic = |participant: &RtpsParticipant| -> RtpsTopic {
            participant.topic("line", &settings.topics["line"]).expect("a topic")
        };
        let [reading, writing] = &participants;
        let mut inbox = topic(reading).read().expect("a reader");
        if !is_due {
            inbox.cached = None;
        }
        let writer = topic(writing).write().expect("a writer");
        let is_writer = |id| prefix_of(id) == writing.prefix;
        await_news(
            &mut inbox,
            |news| matches!(news, RtpsNews::Peer(RtpsPeerNews::Came(id)) if is_writer(*id)),
        );
        let reads = |news| matches!(news, RtpsPeerNews::Came(id) if prefix_of(id) == reading.reading_prefix);
        let begun = Instant::now();
        while !writer.next_peer().is_some_and(reads) {
            assert!(begun.elapsed() < SOON, "the reader does not match");
            std::thread::sleep(Duration::from_millis(5));
        }
        for _ in 0..COUNT {
            writer.write(vec![0, 1, 0, 0, 1, 0, 0, 0, 0]).expect("there is space");
        }
        while !writer.await_confirmation() {
            assert!(begun.elapsed() < SOON, "the reader does not confirm");
        }
        drop(writer);
        // Nothing is taken meanwhile.
        std::thread::sleep(Duration::from_secs(1));
        let (mut went, mut numbers) = (false, Vec::new());
        while !went {
            match inbox.next(SOON) {
                Some(RtpsNews::Sample { writer, number, .. }) if is_writer(writer) => numbers.push(number),
                Some(RtpsNews::Peer(RtpsPeerNews::Went(id))) => went = is_writer(id),
                Some(_) => {}
                None => panic!("that the writer has gone does not come"),
            }
        }
        numbers
    }

    #[test]
    fn what_was_confirmed_comes_although_its_writer_has_gone() {
        for is_keyed in [false, true] {
            let numbers = numbers_of_writer_that_has_gone(is_keyed, true);
            let first = numbers.first().copied().unwrap_or_default();
            assert_eq!(numbers, (first..first + COUNT).collect::<Vec<_>>(), "keyed: {is_keyed}");
        }
    }

    /// If this fails, RustDDS hands over what it has confirmed, and there is no need for a second reader of the cache any more.
    #[test]
    fn rustdds_hands_over_nothing_of_a_writer_that_has_gone() {
        assert!(numbers_of_writer_that_has_gone(false, false).is_empty());
    }
}
