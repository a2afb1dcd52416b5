//! All ways in which a network can part (Derecho §2.1: the majority goes on).

/// All ways to divide `nodes` nodes into two or more parts; the nodes of a part in ascending order.
#[must_use]
pub fn partitions(nodes: u32) -> Vec<Vec<Vec<u32>>> {
    let mut partitions = vec![Vec::<Vec<u32>>::new()];
    for node in 0..nodes {
        let before = std::mem::take(&mut partitions);
        for parts in before {
            for part in 0..=parts.len() {
                let mut parts = parts.clone();
                match parts.get_mut(part) {
                    Some(part) => part.push(node),
                    None => parts.push(vec![node]),
                }
                partitions.push(parts);
            }
        }
    }
    partitions.retain(|parts| parts.len() > 1);
    partitions
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bell's numbers, less the one that divides nothing.
    #[test]
    fn all_are_there() {
        assert_eq!([2, 3, 4, 5].map(|nodes| partitions(nodes).len()), [1, 4, 14, 51]);
        let mut all = partitions(5);
        all.sort();
        all.dedup();
        assert_eq!(all.len(), 51);
    }
}
