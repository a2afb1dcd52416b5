//! The switch: which frame arrives where and when. It knows neither devices nor clocks.
//!
//! # State and invariants
//! One queue of frames on their way, ordered by the time of their arrival, then by the order in which they were put there; and, for each
//! ordered pair of ports, its conditions and how long its line is taken.
//! - A frame arrives at the port that its address names, or at all others (never at its own), if their links let it.
//! - Frames of a pair arrive in order, but for jitter, reordering, and conditions that change meanwhile.
//! - The same frames at the same times, and the same seed, meet the same faults.
//! - A link with a limited rate carries at most that rate, and holds [`QUEUE`] of it; memory is bounded by [`FRAMES_MAX`].

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::Range;
use std::time::Duration;

use squall_fabric::sim::Prng;

use super::conditions::{HELD_BACK, LinkConditions, QUEUE, Share};

/// Frames between the ports. `handle_frame` takes what a port sends, `poll_frame` yields what arrives; times are nanoseconds that never
/// decrease.
pub(super) struct Switch {
    ports: usize,
    /// By sender, then receiver.
    links: Vec<Link>,
    queue: BinaryHeap<Reverse<QueuedFrame>>,
    random: Prng,
    /// Frames that were queued ever.
    queued: u64,
}

/// One direction between two ports.
#[derive(Clone, Default)]
struct Link {
    conditions: LinkConditions,
    /// When they were set.
    set_ns: u64,
    /// Until when frames of a limited rate take the line.
    taken_until_ns: u64,
    /// When the latest frame arrives that keeps the order.
    latest_ns: u64,
    counters: LinkCounters,
}

/// What one direction between two ports has carried.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct LinkCounters {
    frames: u64,
    lost: u64,
}

#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct QueuedFrame {
    due_ns: u64,
    number: u64,
    to: usize,
    bytes: Vec<u8>,
}

impl Switch {
    /// A switch without faults.
    pub(super) fn new(ports: usize, seed: u64) -> Self {
        let (links, queue) = (vec![Link::default(); ports * ports], BinaryHeap::new());
        Self { ports, links, queue, random: Prng::new(seed), queued: 0 }
    }

    /// Sets the conditions of one direction from now on; frames that are on their way arrive as they would have.
    pub(super) fn set(&mut self, now_ns: u64, from: usize, to: usize, conditions: LinkConditions) {
        let link = &mut self.links[from * self.ports + to];
        (link.conditions, link.set_ns, link.taken_until_ns) = (conditions, now_ns, 0);
    }

    /// What a link has carried so far.
    #[cfg(test)]
    fn counters(&self, from: usize, to: usize) -> LinkCounters {
        self.links[from * self.ports + to].counters
    }

    /// Takes a frame that port `from` sends.
    pub(super) fn handle_frame(&mut self, now_ns: u64, from: usize, frame: &[u8]) {
        match Destination::of(frame, self.ports) {
            Destination::Port(to) if to != from => self.send(now_ns, from, to, frame),
            Destination::All => {
                (0..self.ports).filter(|to| *to != from).for_each(|to| self.send(now_ns, from, to, frame));
            }
            Destination::Port(_) | Destination::Nowhere => {}
        }
    }

    fn send(&mut self, now_ns: u64, from: usize, to: usize, frame: &[u8]) {
        let place = from * self.ports + to;
        self.links[place].counters.frames += 1;
        let conditions = self.links[place].conditions;
        if !self.is_carried(now_ns, place, frame.len()) {
            self.links[place].counters.lost += 1;
            return;
        }
        let copies = 1 + usize::from(self.happens(conditions.duplicates));
        for _ in 0..copies {
            let mut bytes = frame.to_vec();
            if self.happens(conditions.corruption) {
                let bit = self.random.below((frame.len() - HEADER) as u64 * 8);
                let bit = usize::try_from(bit).expect("less than a frame's bits");
                bytes[HEADER + bit / 8] ^= 1 << (bit % 8);
            }
            if self.happens(conditions.damage) {
                swap_words(&mut bytes, &mut self.random);
            }
            let due_ns = self.due_ns(now_ns, place);
            self.queued += 1;
            self.queue.push(Reverse(QueuedFrame { due_ns, number: self.queued, to, bytes }));
        }
    }

    /// Whether a frame gets through; if the rate is limited, it takes the line for its time.
    fn is_carried(&mut self, now_ns: u64, place: usize, length: usize) -> bool {
        let lost = self.happens(self.links[place].conditions.loss);
        let link = &mut self.links[place];
        let conditions = &link.conditions;
        let longest = usize::try_from(conditions.longest).unwrap_or(usize::MAX);
        let is_too_long = longest > 0 && length > longest + HEADER;
        let is_down = conditions.flapping.is_down(Duration::from_nanos(now_ns - link.set_ns));
        if conditions.is_cut || is_down || lost || is_too_long || self.queue.len() >= FRAMES_MAX {
            return false;
        }
        let Some(takes_ns) = (length as u64 * 8 * 1_000_000_000).checked_div(conditions.rate.0) else {
            // Without a limit.
            return true;
        };
        let begins_ns = link.taken_until_ns.max(now_ns);
        let has_space = Duration::from_nanos(begins_ns - now_ns) <= QUEUE;
        if has_space {
            link.taken_until_ns = begins_ns + takes_ns;
        }
        has_space
    }

    /// When a frame arrives that leaves now, or when the line is free.
    fn due_ns(&mut self, now_ns: u64, place: usize) -> u64 {
        let LinkConditions { delay, jitter, reordering, .. } = self.links[place].conditions;
        let held_back = self.happens(reordering);
        let jitter_ns = if jitter.is_zero() { 0 } else { self.random.below(nanoseconds(jitter) + 1) };
        let link = &mut self.links[place];
        let due_ns = link.taken_until_ns.max(now_ns) + nanoseconds(delay) + jitter_ns;
        if held_back {
            return due_ns + nanoseconds(HELD_BACK);
        }
        if jitter.is_zero() {
            link.latest_ns = link.latest_ns.max(due_ns);
            return link.latest_ns;
        }
        due_ns
    }

    fn happens(&mut self, share: Share) -> bool {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "0 <= share <= 1")]
        let below = (share.0 * SCALE as f64) as u64;
        below > 0 && self.random.below(SCALE) < below
    }

    /// Yields a frame that has arrived, and where.
    pub(super) fn poll_frame(&mut self, now_ns: u64) -> Option<(usize, Vec<u8>)> {
        if self.next_due_ns()? > now_ns {
            return None;
        }
        self.queue.pop().map(|Reverse(frame)| (frame.to, frame.bytes))
    }

    /// When the next frame arrives.
    pub(super) fn next_due_ns(&self) -> Option<u64> {
        self.queue.peek().map(|Reverse(frame)| frame.due_ns)
    }
}

/// Where a frame's address sends it.
#[derive(Debug, PartialEq, Eq)]
enum Destination {
    Port(usize),
    All,
    Nowhere,
}

impl Destination {
    fn of(frame: &[u8], ports: usize) -> Self {
        let Some((address, _)) = frame.split_first_chunk::<6>().filter(|_| frame.len() > HEADER) else {
            return Self::Nowhere;
        };
        if address[0] & 1 == 1 {
            return Self::All;
        }
        let port = usize::from(address[5]);
        if *address == hardware_address(port) && port < ports { Self::Port(port) } else { Self::Nowhere }
    }
}

/// The hardware address of the device at a port, one of those that anyone may use.
pub(super) fn hardware_address(port: usize) -> [u8; 6] {
    [0x02, b's', b'q', 0, 0, u8::try_from(port).unwrap_or(u8::MAX)]
}

/// Swaps two words of 16 bits of the payload of a TCP segment, so that its checksum stays right; leaves frames without such a payload alone.
fn swap_words(frame: &mut [u8], random: &mut Prng) {
    let Some(payload) = tcp_payload(frame) else { return };
    let words = payload.len() / 2;
    let mut word =
        || usize::try_from(random.below(words.max(1) as u64)).expect("less than a frame's words") * 2;
    let (one, other) = (word(), word());
    if words > 1 {
        let (one, other) = (payload.start + one, payload.start + other);
        (0..2).for_each(|byte| frame.swap(one + byte, other + byte));
    }
}

/// Where a frame has the payload of a TCP segment.
fn tcp_payload(frame: &[u8]) -> Option<Range<usize>> {
    let packet = frame.get(HEADER..)?;
    let (header, length) = match frame[HEADER - 2..HEADER] {
        [0x08, 0x00] if packet.get(9) == Some(&TCP) => {
            let length = u16::from_be_bytes([*packet.get(2)?, *packet.get(3)?]);
            (usize::from(packet[0] & 0xf) * 4, usize::from(length))
        }
        [0x86, 0xdd] if packet.get(6) == Some(&TCP) => {
            let length = u16::from_be_bytes([*packet.get(4)?, *packet.get(5)?]);
            (40, 40 + usize::from(length))
        }
        _ => return None,
    };
    let offset = usize::from(packet.get(header + 12)? >> 4) * 4;
    let (begin, end) = (HEADER + header + offset, HEADER + length);
    (begin < end && end <= frame.len()).then_some(begin..end)
}

/// The number of TCP among the protocols of IP.
const TCP: u8 = 6;

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX / 4)
}

/// Bytes of an Ethernet header.
const HEADER: usize = 14;
/// The frames that are on their way at most: 300 ms of 10 Gbit/s in frames of 1,500 bytes.
const FRAMES_MAX: usize = 1 << 18;
/// How finely shares are drawn.
const SCALE: u64 = 1 << 40;

#[cfg(test)]
mod tests {
    use super::super::conditions::{BitRate, Flapping};
    use super::*;

    const MS: u64 = 1_000_000;

    fn frame(to: usize, number: u8) -> Vec<u8> {
        let mut frame = vec![0; 100];
        frame[..6].copy_from_slice(&hardware_address(to));
        frame[99] = number;
        frame
    }

    /// A switch of three ports, whose link from 0 to 1 has these conditions.
    fn switch(conditions: LinkConditions) -> Switch {
        let mut switch = Switch::new(3, 7);
        switch.set(0, 0, 1, conditions);
        switch
    }

    /// All that arrives until then: where, and the last byte.
    fn arrivals(switch: &mut Switch, now_ns: u64) -> Vec<(usize, u8)> {
        std::iter::from_fn(|| switch.poll_frame(now_ns)).map(|(to, bytes)| (to, bytes[99])).collect()
    }

    /// How many of 10,000 frames from 0 to 1, one per millisecond, arrive in the end.
    fn arrived_of_10_000(conditions: LinkConditions) -> usize {
        let mut switch = switch(conditions);
        (0..10_000).for_each(|number| switch.handle_frame(number * MS, 0, &frame(1, 0)));
        arrivals(&mut switch, u64::MAX).len()
    }

    #[test]
    fn frames_arrive_where_their_address_says() {
        let mut switch = Switch::new(3, 7);
        switch.handle_frame(0, 0, &frame(1, 1));
        switch.handle_frame(0, 0, &frame(0, 2));
        switch.handle_frame(0, 0, &frame(200, 3));
        switch.handle_frame(0, 0, &[0; 3]);
        let mut broadcast = frame(0, 4);
        broadcast[..6].fill(0xff);
        switch.handle_frame(0, 1, &broadcast);
        assert_eq!(arrivals(&mut switch, 0), [(1, 1), (0, 4), (2, 4)]);
    }

    #[test]
    fn a_delay_holds_back_one_direction_alone() {
        let mut switch = switch(LinkConditions { delay: Duration::from_millis(5), ..Default::default() });
        switch.handle_frame(0, 0, &frame(1, 1));
        switch.handle_frame(0, 1, &frame(0, 2));
        assert_eq!(arrivals(&mut switch, 0), [(0, 2)]);
        assert_eq!(switch.next_due_ns(), Some(5 * MS));
        assert_eq!(arrivals(&mut switch, 5 * MS - 1), []);
        assert_eq!(arrivals(&mut switch, 5 * MS), [(1, 1)]);
    }

    #[test]
    fn a_shorter_delay_overtakes_nothing() {
        let mut switch = switch(LinkConditions { delay: Duration::from_millis(5), ..Default::default() });
        switch.handle_frame(0, 0, &frame(1, 1));
        switch.set(1, 0, 1, LinkConditions::default());
        switch.handle_frame(2, 0, &frame(1, 2));
        assert_eq!(arrivals(&mut switch, 5 * MS), [(1, 1), (1, 2)]);
    }

    #[test]
    fn a_cut_link_carries_nothing_until_it_is_mended() {
        let mut switch = switch(LinkConditions { is_cut: true, ..Default::default() });
        switch.handle_frame(0, 0, &frame(1, 1));
        switch.handle_frame(0, 0, &frame(2, 2));
        switch.set(1, 0, 1, LinkConditions::default());
        switch.handle_frame(1, 0, &frame(1, 3));
        assert_eq!(arrivals(&mut switch, MS), [(2, 2), (1, 3)]);
        assert_eq!(switch.counters(0, 1), LinkCounters { frames: 2, lost: 1 });
    }

    #[test]
    fn faults_happen_to_their_share_of_the_frames() {
        let tenth = Share(0.1);
        let lost = 10_000 - arrived_of_10_000(LinkConditions { loss: tenth, ..Default::default() });
        assert!((800..1200).contains(&lost), "{lost}");
        let twice = arrived_of_10_000(LinkConditions { duplicates: tenth, ..Default::default() }) - 10_000;
        assert!((800..1200).contains(&twice), "{twice}");
        let flapping = Flapping { up: Duration::from_secs(1), down: Duration::from_secs(1) };
        assert_eq!(arrived_of_10_000(LinkConditions { flapping, ..Default::default() }), 5000);
        let mut switch = switch(LinkConditions { corruption: tenth, ..Default::default() });
        (0..10_000).for_each(|_| switch.handle_frame(0, 0, &frame(1, 0)));
        let changed = std::iter::from_fn(|| switch.poll_frame(0)).filter(|(_, bytes)| *bytes != frame(1, 0));
        let bits =
            changed.map(|(_, bytes)| bytes[HEADER..].iter().map(|byte| byte.count_ones()).sum::<u32>());
        let bits: Vec<u32> = bits.collect();
        assert!((800..1200).contains(&bits.len()) && bits.iter().all(|bits| *bits == 1), "{bits:?}");
    }

    /// The sum of all words of a segment stays, and what is no segment of TCP stays as it is.
    #[test]
    fn damage_keeps_the_checksum() {
        let mut segment = frame(1, 0);
        segment.truncate(HEADER);
        segment[HEADER - 2..].copy_from_slice(&[0x08, 0x00]);
        let mut packet = vec![0; 40];
        (packet[0], packet[3], packet[9], packet[32]) = (0x45, 60, TCP, 5 << 4);
        packet.extend(1..=20);
        segment.extend(&packet);
        // Ethernet fills short frames up.
        segment.extend([0xff; 6]);
        let sum = |bytes: &[u8]| {
            bytes.chunks(2).map(|word| u32::from(word[0]) << 8 | u32::from(word[1])).sum::<u32>()
        };
        let mut random = Prng::new(1);
        let mut differ = 0;
        for _ in 0..100 {
            let mut damaged = segment.clone();
            swap_words(&mut damaged, &mut random);
            assert_eq!(damaged[..HEADER + 40], segment[..HEADER + 40]);
            assert_eq!(damaged[HEADER + 60..], [0xff; 6]);
            assert_eq!(sum(&damaged), sum(&segment));
            differ += usize::from(damaged != segment);
        }
        assert!(differ > 80, "{differ}");
        for other in [frame(1, 0), segment[..HEADER + 30].to_vec(), segment[..HEADER].to_vec()] {
            let mut damaged = other.clone();
            swap_words(&mut damaged, &mut random);
            assert_eq!(damaged, other);
        }
    }

    #[test]
    fn a_frame_that_is_held_back_is_overtaken() {
        let mut switch = switch(LinkConditions { reordering: Share(1.0), ..Default::default() });
        switch.handle_frame(0, 0, &frame(1, 1));
        switch.set(0, 0, 1, LinkConditions::default());
        switch.handle_frame(0, 0, &frame(1, 2));
        assert_eq!(arrivals(&mut switch, MS), [(1, 2), (1, 1)]);
    }

    #[test]
    fn jitter_is_bounded() {
        let (delay, jitter) = (Duration::from_millis(2), Duration::from_millis(3));
        let mut switch = switch(LinkConditions { delay, jitter, ..Default::default() });
        (0..100).for_each(|number| switch.handle_frame(0, 0, &frame(1, number)));
        assert_eq!(arrivals(&mut switch, 2 * MS - 1), []);
        let order: Vec<u8> = arrivals(&mut switch, 5 * MS).into_iter().map(|(_, number)| number).collect();
        assert!(order.len() == 100 && !order.is_sorted(), "{order:?}");
    }

    #[test]
    fn a_rate_is_kept_and_its_queue_is_bounded() {
        // 100 bytes take 1 ms.
        let mut switch = switch(LinkConditions { rate: BitRate(800_000), ..Default::default() });
        (0..1000).for_each(|_| switch.handle_frame(0, 0, &frame(1, 0)));
        assert_eq!(arrivals(&mut switch, MS).len(), 1);
        assert_eq!(arrivals(&mut switch, 50 * MS).len(), 49);
        assert_eq!(arrivals(&mut switch, u64::MAX).len(), 51);
        assert_eq!(switch.counters(0, 1).lost, 899);
    }

    #[test]
    fn what_is_too_long_vanishes() {
        let mut switch = switch(LinkConditions { longest: 86, ..Default::default() });
        switch.handle_frame(0, 0, &frame(1, 1));
        let mut longer = frame(1, 2);
        longer.push(0);
        switch.handle_frame(0, 0, &longer);
        assert_eq!(arrivals(&mut switch, 0), [(1, 1)]);
    }

    #[test]
    fn the_same_seed_does_the_same() {
        let half =
            LinkConditions { loss: Share(0.5), jitter: Duration::from_millis(1), ..Default::default() };
        let run = |seed| {
            let mut switch = Switch::new(2, seed);
            switch.set(0, 0, 1, half);
            (0..100).for_each(|number| switch.handle_frame(0, 0, &frame(1, number)));
            arrivals(&mut switch, MS)
        };
        assert_eq!(run(1), run(1));
        assert_ne!(run(1), run(2));
    }
}
