//! Cores: which this process may use, and which member gets which.

use rustix::thread::{CpuSet, sched_getaffinity};

/// The cores that this process may use.
pub(crate) fn allowed() -> Vec<usize> {
    let set = sched_getaffinity(None).unwrap_or_else(|_| CpuSet::new());
    (0..CpuSet::MAX_CPU).filter(|core| set.is_set(*core)).collect()
}

/// A core for each of `members`, if there are enough.
pub(crate) fn for_members(members: usize) -> Vec<Option<usize>> {
    let allowed = allowed();
    let enough = allowed.len() >= members;
    (0..members).map(|member| if enough { Some(allowed[member]) } else { None }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_get_cores_of_their_own_or_none() {
        let count = allowed().len();
        assert!(count > 0);
        let cores = for_members(count);
        assert!(cores.iter().all(Option::is_some) && cores.is_sorted_by(|a, b| a < b));
        assert_eq!(for_members(count + 1), vec![None; count + 1]);
    }
}
