//! Failing links, and the number of members that have to be removed so that all others hear each other (Derecho §2).

use squall_fabric::Duration;
use squall_fabric::sim::Prng;

use super::{BadLink, LinkFailure};

/// Returns the size of a minimum vertex cover of `pairs`, which it finds by trying all sets. The pairs consist of
/// nodes below `nodes`.
///
/// # Panics
/// If there are more than 31 nodes, of which there are too many sets.
#[must_use]
pub fn least_cover(nodes: u32, pairs: &[(u32, u32)]) -> u32 {
    assert!(nodes < u32::BITS, "all sets of {nodes} nodes");
    let covers = |set: &u32| pairs.iter().all(|(a, b)| set >> a & 1 == 1 || set >> b & 1 == 1);
    (0..1_u32 << nodes).filter(covers).map(u32::count_ones).min().expect("all nodes cover all pairs")
}

/// Draws one to three bad links, of arbitrary members or all of one member.
pub(super) fn draw(prng: &mut Prng, members: u32) -> Vec<BadLink> {
    let node = |prng: &mut Prng| u32::try_from(prng.below(u64::from(members))).expect("few");
    let hub = node(prng);
    let is_star = prng.chance(400);
    // The links fail at about the same time, because a removed member has no bad links any more.
    let kind = [LinkFailure::OneWay, LinkFailure::Silent, LinkFailure::Reported][prng.index(3)];
    let mut links: Vec<BadLink> = Vec::new();
    for _ in 0..1 + prng.below(3) {
        let (a, b) = (if is_star { hub } else { node(prng) }, node(prng));
        let is_new = !links.iter().any(|link| [(a, b), (b, a)].contains(&(link.a, link.b)));
        if a != b && is_new {
            let (a, b) = if prng.chance(500) { (a, b) } else { (b, a) };
            links.push(BadLink { a, b, kind, after: Duration::from_nanos(prng.below(20_000)) });
        }
    }
    links
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_least_cover_has_an_end_of_each_pair() {
        assert_eq!(least_cover(4, &[]), 0);
        assert_eq!(least_cover(4, &[(0, 1)]), 1);
        assert_eq!(least_cover(4, &[(0, 1), (0, 2), (0, 3)]), 1);
        assert_eq!(least_cover(4, &[(0, 1), (2, 3)]), 2);
        assert_eq!(least_cover(5, &[(0, 1), (1, 2), (2, 3), (3, 4), (4, 0)]), 3);
    }
}
