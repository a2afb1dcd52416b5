//! Topology: the racks of the members (RDMC §3.1).

/// Members by rack. The first member of a rack is its leader; the first rack is the root's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topology {
    /// `racks[rack]` lists ranks, ascending; each rank is in exactly one rack, and no rack is empty.
    racks: Vec<Vec<usize>>,
    /// `places[rank]` is (rack, index in the rack).
    places: Vec<(usize, usize)>,
}

impl Topology {
    /// Returns the topology in which member `rank` is in the rack with the name `rack_of[rank]`.
    #[must_use]
    pub fn new(rack_of: &[u32]) -> Self {
        let mut names = Vec::new();
        let mut racks: Vec<Vec<usize>> = Vec::new();
        let mut places = Vec::with_capacity(rack_of.len());
        for (rank, name) in rack_of.iter().enumerate() {
            let rack = names.iter().position(|known| known == name).unwrap_or_else(|| {
                names.push(*name);
                racks.push(vec![]);
                racks.len() - 1
            });
            places.push((rack, racks[rack].len()));
            racks[rack].push(rank);
        }
        Self { racks, places }
    }

    /// Returns the number of members.
    #[must_use]
    pub fn members(&self) -> usize {
        self.places.len()
    }

    /// Returns the number of racks.
    #[must_use]
    pub fn racks(&self) -> usize {
        self.racks.len()
    }

    /// Returns the members of a rack, the leader first.
    ///
    /// # Panics
    /// If there is no such rack.
    #[must_use]
    pub fn rack(&self, rack: usize) -> &[usize] {
        &self.racks[rack]
    }

    /// Returns the leader of a rack.
    pub(super) fn leader(&self, rack: usize) -> usize {
        self.racks[rack][0]
    }

    /// Returns the rack of a member and its index in it.
    pub(super) fn place(&self, rank: usize) -> (usize, usize) {
        self.places[rank]
    }
}
