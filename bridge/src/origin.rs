//! Where samples come from, so that none goes back there, and one bridge of several forwards.
//!
//! The writer of each bridge in the Squall domain carries a mark in USER_DATA: the number of its RTPS domain, and the prefix by which its
//! participant is known there. So each bridge of a topic knows all others, on both sides.
//!
//! - A sample whose writer in the Squall domain has a mark with the same RTPS domain came from there: it is not forwarded there.
//! - A sample whose writer in the RTPS domain has the prefix of a bridge came from the Squall domain: it is not forwarded there.
//! - Both hold for bridges that have gone, too: their samples may still wait in the readers of those that are left. So marks are never
//!   forgotten; no member and no participant gets the number of another one.
//! - Of the bridges between the same two domains, the one whose writer has the least number forwards; if its member leaves the view, the
//!   next one does. A sample that comes in between may be lost.
//! - A bridge forwards nothing until all bridges know its mark, which takes them [`SETTLE`] at most.

use std::collections::BTreeSet;
use std::time::Duration;

use squall_dds::EndpointId;

/// The first 12 bytes of the numbers of all endpoints of an RTPS participant (`GuidPrefix_t`).
pub(crate) type GuidPrefixBytes = [u8; 12];

/// How long a bridge waits before it forwards, from when it knows its own mark. Others look for marks ten times in this time.
pub(crate) const SETTLE: Duration = Duration::from_secs(1);

/// The bridges of a topic to one RTPS domain, by their writers in the Squall domain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct TopicOrigins {
    /// Those that are there: one of them forwards.
    present: BTreeSet<EndpointId>,
    /// Those, and those that were there before.
    writers: BTreeSet<EndpointId>,
    /// Of the same ones, in the RTPS domain.
    participants: BTreeSet<GuidPrefixBytes>,
}

impl TopicOrigins {
    /// Takes the writers of the topic that are there, with what they carry in USER_DATA.
    pub(crate) fn update<'a>(&mut self, domain: u16, writers: impl Iterator<Item = (EndpointId, &'a [u8])>) {
        self.present.clear();
        for (id, data) in writers {
            let Some((_, prefix)) = unmark(data).filter(|(of, _)| *of == domain) else { continue };
            self.present.insert(id);
            self.writers.insert(id);
            self.participants.insert(prefix);
        }
    }

    /// Returns whether the bridge with this writer is there.
    pub(crate) fn knows(&self, own: EndpointId) -> bool {
        self.present.contains(&own)
    }

    /// Returns whether the bridge with this writer is the one that forwards.
    pub(crate) fn leads(&self, own: EndpointId) -> bool {
        self.present.first() == Some(&own)
    }

    /// Returns whether a sample of this writer in the Squall domain came from the RTPS domain.
    pub(crate) fn is_from_rtps(&self, writer: EndpointId) -> bool {
        self.writers.contains(&writer)
    }

    /// Returns whether a sample of this participant of the RTPS domain came from the Squall domain.
    pub(crate) fn is_from_squall(&self, prefix: GuidPrefixBytes) -> bool {
        self.participants.contains(&prefix)
    }
}

/// Returns what the writer of a bridge carries in USER_DATA.
pub(crate) fn mark(domain: u16, prefix: GuidPrefixBytes) -> Vec<u8> {
    [MARK, &domain.to_le_bytes(), &prefix].concat()
}

/// Returns the domain and the prefix of a bridge's mark. Not fuzzed: it compares, and takes bytes of a fixed length.
fn unmark(data: &[u8]) -> Option<(u16, GuidPrefixBytes)> {
    let (domain, prefix) = data.strip_prefix(MARK)?.split_first_chunk()?;
    Some((u16::from_le_bytes(*domain), prefix.try_into().ok()?))
}

const MARK: &[u8] = b"squall-dds-bridge:";

#[cfg(test)]
mod tests {
    use super::*;

    const DOMAIN: u16 = 3;

    fn writer(node: u32) -> EndpointId {
        EndpointId { node, number: 0 }
    }

    fn prefix(node: u32) -> GuidPrefixBytes {
        [u8::try_from(node).expect("few"); 12]
    }

    /// The origins of a topic with bridges at these nodes, and a writer of an application at node 9.
    fn origins(bridges: &[u32]) -> TopicOrigins {
        let mut origins = TopicOrigins::default();
        look(&mut origins, bridges);
        origins
    }

    fn look(origins: &mut TopicOrigins, bridges: &[u32]) {
        let marks: Vec<_> = bridges.iter().map(|node| (writer(*node), mark(DOMAIN, prefix(*node)))).collect();
        let application = (writer(9), b"v2".to_vec());
        let writers: Vec<_> = marks.into_iter().chain([application]).collect();
        origins.update(DOMAIN, writers.iter().map(|(id, data)| (*id, data.as_slice())));
    }

    #[test]
    fn marks_come_back() {
        assert_eq!(unmark(&mark(DOMAIN, prefix(7))), Some((DOMAIN, prefix(7))));
        for data in [b"".as_slice(), MARK, b"squall-dds-bridge:\0\0short"] {
            assert_eq!(unmark(data), None);
        }
    }

    #[test]
    fn bridges_to_another_domain_do_not_count() {
        let other = mark(DOMAIN + 1, prefix(1));
        let mut origins = TopicOrigins::default();
        origins.update(DOMAIN, [(writer(1), other.as_slice())].into_iter());
        assert_eq!(origins, TopicOrigins::default());
    }

    /// What the guards do; tests leave one out to see that it is needed.
    #[derive(Clone, Copy)]
    struct Guards {
        leader: bool,
        squall: bool,
        rtps: bool,
    }

    const ALL: Guards = Guards { leader: true, squall: true, rtps: true };

    /// Forwards a sample between the domains until nothing moves; returns how often it appears in the other one, and in all.
    fn spread(bridges: &[u32], starts_in_squall: bool, guards: Guards) -> (usize, usize) {
        let origins = origins(bridges);
        // Of each appearance: whether it is in the Squall domain, and the node of the bridge that wrote it, if one did.
        let mut appearances = vec![(starts_in_squall, None)];
        let mut next = 0;
        while next < appearances.len() && appearances.len() < 100 {
            let (in_squall, wrote) = appearances[next];
            next += 1;
            for own in bridges {
                let is_due = match (in_squall, wrote) {
                    (true, by) => {
                        !(guards.squall && origins.is_from_rtps(writer(by.unwrap_or(9)))) && by != Some(*own)
                    }
                    (false, by) => {
                        !(guards.rtps && origins.is_from_squall(by.map_or([0; 12], prefix)))
                            && by != Some(*own)
                    }
                };
                if is_due && (!guards.leader || origins.leads(writer(*own))) {
                    appearances.push((!in_squall, Some(*own)));
                }
            }
        }
        let other = appearances.iter().filter(|(in_squall, _)| *in_squall != starts_in_squall).count();
        (other, appearances.len())
    }

    #[test]
    fn a_sample_crosses_once() {
        for bridges in [&[1][..], &[2, 5], &[1, 4, 6]] {
            for starts_in_squall in [true, false] {
                assert_eq!(spread(bridges, starts_in_squall, ALL), (1, 2), "{bridges:?} {starts_in_squall}");
            }
        }
    }

    /// Each guard is needed as soon as there are two bridges that do not know who leads.
    #[test]
    fn without_a_guard_samples_multiply() {
        let none = Guards { leader: false, squall: false, rtps: false };
        assert!(spread(&[1, 2], true, none).1 >= 100, "it goes round");
        assert_eq!(spread(&[1, 2], true, Guards { leader: false, ..ALL }), (2, 3), "each bridge forwards");
        assert!(spread(&[1, 2], true, Guards { rtps: false, leader: false, ..ALL }).1 > 3);
        assert!(spread(&[1, 2], false, Guards { squall: false, leader: false, ..ALL }).1 > 3);
    }

    #[test]
    fn the_next_bridge_takes_over() {
        assert!(origins(&[1, 4]).leads(writer(1)) && !origins(&[1, 4]).leads(writer(4)));
        assert!(origins(&[4]).leads(writer(4)));
        assert!(!origins(&[]).leads(writer(4)));
    }

    /// What it has written may wait in the readers of the next one, which would write it back to where it came from.
    #[test]
    fn samples_of_a_bridge_that_has_gone_are_known() {
        let mut origins = origins(&[1, 4]);
        look(&mut origins, &[4]);
        assert!(origins.leads(writer(4)) && !origins.knows(writer(1)), "the next one forwards");
        assert!(origins.is_from_rtps(writer(1)) && origins.is_from_squall(prefix(1)));
        assert!(!origins.is_from_rtps(writer(9)) && !origins.is_from_squall(prefix(9)));
        look(&mut origins, &[]);
        assert!(origins.is_from_rtps(writer(4)) && !origins.leads(writer(4)));
    }
}
