//! All partitions of a network (Derecho §2.1: the majority continues).

/// Returns all partitions of `nodes` nodes into two or more parts, with the nodes of a part in ascending order.
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

    /// The counts are Bell numbers less one, for the partition with a single part.
    #[test]
    fn all_partitions_are_listed() {
        assert_eq!([2, 3, 4, 5].map(|nodes| partitions(nodes).len()), [1, 4, 14, 51]);
        let mut all = partitions(5);
        all.sort();
        all.dedup();
        assert_eq!(all.len(), 51);
    }
}
