//! The binomial pipeline: rotating binomial trees in a hypercube (RDMC app. A, fig. 3).
//!
//! With `d = ⌊log2 members⌋`, the members are assigned to the `2^d` vertices of a hypercube, and in step `j` all
//! vertices send along dimension `j mod d`. The root sends block `j` in step `j` (at the end the last block,
//! repeatedly). Every other vertex relays the block that it received last in a step of one of *its own* dimensions,
//! those of its set bits, until the next such step. So vertex `v` sends in step `j` block `j + gap − d`, where `gap`
//! is the distance from dimension `j mod d` to the next dimension of `v`, cyclically; before block 0 it sends
//! nothing, and after the last block it sends the last one. (Both stages and the final stage of the appendix are this
//! one rule.)
//!
//! If the number of members is not a power of two, the vertices `1, 2, …` represent two members each: a *first* and a
//! *second*. In each step one of the two sends to the neighbour; the other one receives from the neighbour, and hands
//! to the sender the block that it received before and that the sender lacks: in step `j` that is always block `j − 1
//! − d`. They exchange roles in each step of one of the vertex's own dimensions, so that the member that has to send
//! a block always has it. In one further step the two exchange the blocks that they lack.
//!
//! `Deviation:` the paper says that in such a vertex "exactly one of the nodes will have that block", but not how
//! roles are determined; here they are a parity. With a single block the second member of a vertex gets it, in the
//! last step, from the neighbour from which it would get its first one of many [B6], and not from the vertex's first
//! member.

/// A binomial pipeline.
#[derive(Clone, Copy, Debug)]
pub(super) struct PipelineSchedule {
    members: usize,
    /// `1 <= dimensions`, `2^dimensions <= members < 2^(dimensions + 1)`, if there are at least two members.
    dimensions: u32,
    pub(super) blocks: u64,
}

impl PipelineSchedule {
    pub(super) fn new(members: usize, blocks: u64) -> Self {
        Self { members, dimensions: members.ilog2(), blocks }
    }

    /// `blocks + ⌈log2 members⌉ − 1` [B3].
    pub(super) fn steps(&self) -> u64 {
        self.cube_steps() + u64::from(!self.members.is_power_of_two())
    }

    pub(super) fn send(&self, rank: usize, step: u64) -> Option<(usize, u64)> {
        let vertex = self.vertex(rank);
        if step >= self.cube_steps() {
            return self.trade(rank, vertex, step, true);
        }
        if rank == self.sender(vertex, step) {
            let neighbour = self.neighbour(vertex, step);
            let block = self.carried(vertex, step)?;
            return (neighbour != 0).then(|| (self.receiver(neighbour, step), block));
        }
        Some((self.sender(vertex, step), self.handed(step)?))
    }

    pub(super) fn receive(&self, rank: usize, step: u64) -> Option<(usize, u64)> {
        let vertex = self.vertex(rank);
        if step >= self.cube_steps() {
            return self.trade(rank, vertex, step, false);
        }
        if rank == self.receiver(vertex, step) && rank != 0 {
            let neighbour = self.neighbour(vertex, step);
            return Some((self.sender(neighbour, step), self.carried(neighbour, step)?));
        }
        let block = self.handed(step).filter(|_| self.is_doubled(vertex))?;
        Some((self.receiver(vertex, step), block))
    }

    pub(super) fn sends_from(&self, _rank: usize, from: u64) -> u64 {
        from
    }

    pub(super) fn receives_from(&self, rank: usize, from: u64) -> u64 {
        if rank == 0 { super::NEVER } else { from }
    }

    pub(super) fn targets(&self, rank: usize) -> Vec<usize> {
        (0..self.steps()).filter_map(|step| Some(self.send(rank, step)?.0)).collect()
    }

    pub(super) fn sources(&self, rank: usize) -> Vec<usize> {
        (0..self.steps()).filter_map(|step| Some(self.receive(rank, step)?.0)).collect()
    }

    pub(super) fn lag(&self, _rank: usize) -> u64 {
        u64::from(self.members.next_power_of_two().ilog2())
    }

    /// Returns the number of steps between vertices, after which each vertex has all blocks.
    fn cube_steps(&self) -> u64 {
        self.blocks + u64::from(self.dimensions) - 1
    }

    /// Returns the block that the vertex sends in `step`: see above.
    fn carried(&self, vertex: usize, step: u64) -> Option<u64> {
        let block = (step + u64::from(self.gap(vertex, step))).checked_sub(u64::from(self.dimensions))?;
        Some(block.min(self.blocks - 1))
    }

    /// Returns the distance from the dimension of `step` to the next dimension of the vertex; for the root, the
    /// number of dimensions.
    fn gap(&self, vertex: usize, step: u64) -> u32 {
        let rotation = self.dimension(step);
        let rotated = vertex >> rotation | vertex << (self.dimensions - rotation);
        rotated.trailing_zeros().min(self.dimensions)
    }

    /// Returns the block that the receiver of a doubled vertex hands to the sender in `step`.
    fn handed(&self, step: u64) -> Option<u64> {
        step.checked_sub(u64::from(self.dimensions) + 1)
    }

    /// Returns the transfer of the last step of all, in which the two members of a vertex exchange what each lacks:
    /// the one that was to send next has the last block, the other one the block before it.
    fn trade(&self, rank: usize, vertex: usize, step: u64, giving: bool) -> Option<(usize, u64)> {
        if self.blocks == 1 {
            return self.send_single(rank, vertex, giving);
        }
        let has_last = rank == self.sender(vertex, step);
        let before = u64::from(has_last != giving);
        self.is_doubled(vertex).then(|| (self.other(rank), self.blocks - 1 - before))
    }

    /// Returns the transfer of the last step if there is one block: first members send it to the second ones of their
    /// neighbours.
    fn send_single(&self, rank: usize, vertex: usize, giving: bool) -> Option<(usize, u64)> {
        let neighbour = vertex ^ 1;
        let is_first = rank == vertex;
        match giving {
            true => (is_first && self.is_doubled(neighbour)).then(|| (self.second(neighbour), 0)),
            false => (!is_first).then_some((neighbour, 0)),
        }
    }

    /// Returns the member that sends for the vertex in `step`.
    fn sender(&self, vertex: usize, step: u64) -> usize {
        if self.is_doubled(vertex) && self.changes(vertex, step).is_multiple_of(2) {
            self.second(vertex)
        } else {
            vertex
        }
    }

    /// Returns the member that receives for the vertex in `step`.
    fn receiver(&self, vertex: usize, step: u64) -> usize {
        let sender = self.sender(vertex, step);
        if self.is_doubled(vertex) { self.other(sender) } else { sender }
    }

    /// Returns, up to an even number, how many blocks to relay the vertex has received before `step`: the steps of
    /// its own dimensions before, less those of the first stage in which nothing arrived.
    fn changes(&self, vertex: usize, step: u64) -> u64 {
        let own = u64::from(vertex.count_ones());
        let past = vertex & ((1 << self.dimension(step)) - 1);
        step / u64::from(self.dimensions) * own + u64::from(past.count_ones()) + own + 1
    }

    fn neighbour(&self, vertex: usize, step: u64) -> usize {
        vertex ^ 1 << self.dimension(step)
    }

    fn dimension(&self, step: u64) -> u32 {
        u32::try_from(step % u64::from(self.dimensions)).expect("less than a u32")
    }

    /// Returns the vertex of a member: the members `0..2^d` have the vertices of their numbers, and the others again
    /// `1, 2, …`.
    fn vertex(&self, rank: usize) -> usize {
        if rank < self.vertices() { rank } else { rank - self.vertices() + 1 }
    }

    fn is_doubled(&self, vertex: usize) -> bool {
        vertex > 0 && self.second(vertex) < self.members
    }

    fn second(&self, vertex: usize) -> usize {
        self.vertices() + vertex - 1
    }

    fn other(&self, rank: usize) -> usize {
        if rank < self.vertices() { self.second(rank) } else { self.vertex(rank) }
    }

    fn vertices(&self) -> usize {
        1 << self.dimensions
    }
}
