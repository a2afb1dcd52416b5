//! How views have ended, in a form that a group of many views can afford (Derecho §3.4, "Total failures").

/// Views that have ended, one after the other, with what counts of each.
///
/// A view in which nothing counts takes no memory: a process that joins again and again, and fails, costs a group without messages
/// nothing. Of any other view the number is kept, and the trim of each shard.
///
/// A shard of which no log is left begins again, behind a view that has a mark in place of its trim: nothing counts up to there, also of
/// views before the list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ViewChain {
    /// The number of the first view in the list. Of earlier views only a checkpoint is known.
    first: u64,
    /// One more than the number of the last one.
    end: u64,
    /// The views in which something counts, in order.
    views: Vec<u64>,
    /// For each of these the trims of all shards.
    trims: Vec<u64>,
}

impl ViewChain {
    /// An empty list, to which the view `first` is to be added next.
    #[must_use]
    pub const fn new(first: u64) -> Self {
        Self { first, end: first, views: Vec::new(), trims: Vec::new() }
    }

    /// The list of the views `first..end` of `shards` shards, in which `counted` counts, and what `last` notes of the last view, if there is
    /// one.
    pub(super) fn of_counted(
        first: u64,
        end: u64,
        shards: usize,
        counted: impl Iterator<Item = (u64, Vec<u64>)>,
        last: impl Fn(&mut Vec<u64>),
    ) -> Self {
        let mut chain = Self::new(first);
        let mut trims = vec![0; shards];
        for (view, counts) in counted {
            if view + 1 == end {
                trims = counts;
            } else {
                chain.end = view;
                chain.push(&counts);
            }
        }
        if first < end {
            last(&mut trims);
            chain.end = end - 1;
            chain.push(&trims);
        }
        chain
    }

    /// The list of the views `first..end` in which nothing counts but in those of `views`, each with its part of `trims`; `None` if
    /// it has another form.
    pub(super) fn from_parts(first: u64, end: u64, views: Vec<u64>, trims: Vec<u64>) -> Option<Self> {
        let ascends = views.windows(2).all(|pair| pair[0] < pair[1]);
        let is_within = views.iter().all(|view| (first..end).contains(view));
        let chain = Self { first, end, views, trims };
        let is_valid = first <= end
            && ascends
            && is_within
            && chain.trims.len() == chain.shards() * chain.views.len()
            && chain.counted().count() == chain.views.len()
            && chain.counted().all(|(_, trims)| counts(trims));
        is_valid.then_some(chain)
    }

    /// The number of the first view in the list. Of earlier views only a checkpoint is known.
    #[must_use]
    pub const fn first(&self) -> u64 {
        self.first
    }

    /// One more than the number of the last view in the list.
    #[must_use]
    pub const fn end(&self) -> u64 {
        self.end
    }

    /// Adds the next view, which ends with these trims of all shards.
    pub fn push(&mut self, trims: &[u64]) {
        if counts(trims) {
            self.views.push(self.end);
            self.trims.extend(trims);
        }
        self.end += 1;
    }

    /// The trim of a shard in a view, if that is in the list.
    #[must_use]
    pub fn trim_of(&self, view: u64, shard: usize) -> Option<u64> {
        self.entry(view, shard).map(|entry| if entry == LOST { 0 } else { entry })
    }

    /// What the list has of a shard and a view: the trim, or [`LOST`]; none if the view is not in the list.
    pub(super) fn entry(&self, view: u64, shard: usize) -> Option<u64> {
        (self.first..self.end).contains(&view).then(|| match self.views.binary_search(&view) {
            Ok(place) => self.trims[place * self.shards() + shard],
            Err(_) => 0,
        })
    }

    /// The view in which a shard begins again, of which all that was before is lost; 0 if that is so of no view in the list.
    #[must_use]
    pub fn begun_again(&self, shard: usize) -> u64 {
        let lost = self.counted().filter(|(_, trims)| trims[shard] == LOST).last();
        lost.map_or(0, |(view, _)| view + 1)
    }

    /// The view from which on the list says all that counts of a shard: the first one, or 0 if the shard begins again in the list.
    #[must_use]
    pub fn known_since(&self, shard: usize) -> u64 {
        if self.begun_again(shard) > 0 { 0 } else { self.first }
    }

    /// The views of the list in which something counts, each with the trims of all shards.
    pub fn counted(&self) -> impl Iterator<Item = (u64, &[u64])> + '_ {
        self.views.iter().copied().zip(self.trims.chunks_exact(self.shards().max(1)))
    }

    /// The views of the list in which something of a shard counts, each with its trim.
    pub fn of_shard(&self, shard: usize) -> impl Iterator<Item = (u64, u64)> + '_ {
        let counts = |(_, trim): &(u64, u64)| ![0, LOST].contains(trim);
        self.counted().map(move |(view, trims)| (view, trims[shard])).filter(counts)
    }

    /// Whether both lists have a view that ends differently in each, in a shard that does not begin again later in one of them.
    #[must_use]
    pub fn contradicts(&self, other: &Self) -> bool {
        let shards = self.shards().max(other.shards());
        let begun = |shard| self.begun_again(shard).max(other.begun_again(shard));
        let begun: Vec<u64> = (0..shards).map(begun).collect();
        let shared = self.first.max(other.first)..self.end.min(other.end);
        let counts = |(view, trims): (u64, &[u64])| {
            let shards = trims.iter().zip(&begun).enumerate();
            let counts = shards.filter(|(_, (trim, begun))| **trim > 0 && view >= **begun);
            counts.map(|(shard, (trim, _))| (view, shard, *trim)).collect::<Vec<_>>()
        };
        let is_shared = |(view, _): &(u64, &[u64])| shared.contains(view);
        let all = |chain: &Self| chain.counted().filter(is_shared).flat_map(counts).collect::<Vec<_>>();
        all(self) != all(other)
    }

    /// Takes over what another list has of earlier views, if the lists meet; false if there is nothing.
    pub fn extend(&mut self, other: &Self) -> bool {
        let is_more = other.first < self.first && self.first <= other.end;
        if is_more {
            let place = other.place(self.first);
            self.views.splice(..0, other.views[..place].iter().copied());
            self.trims.splice(..0, other.trims[..place * other.shards()].iter().copied());
            self.first = other.first;
            self.drop_void();
        }
        is_more
    }

    /// Forgets what counted of a shard before it began again: the list that was taken over may not know that.
    fn drop_void(&mut self) {
        let shards = self.shards();
        let begun: Vec<u64> = (0..shards).map(|shard| self.begun_again(shard)).collect();
        if begun.iter().all(|view| *view == 0) {
            return;
        }
        let whole = std::mem::take(self);
        let kept = |(view, trims): (u64, &[u64])| {
            let is_void = |shard: usize| view + 1 < begun[shard];
            (view, (0..shards).map(|shard| if is_void(shard) { 0 } else { trims[shard] }).collect())
        };
        *self = Self::of_counted(whole.first, whole.end, shards, whole.counted().map(kept), |_| ());
    }

    /// Forgets all views before `view`.
    pub fn forget_before(&mut self, view: u64) {
        let first = view.clamp(self.first, self.end);
        let (place, shards) = (self.place(first), self.shards());
        self.views.drain(..place);
        self.trims.drain(..place * shards);
        self.first = first;
    }

    /// How many of the views in which something counts are earlier than `view`.
    fn place(&self, view: u64) -> usize {
        self.views.partition_point(|earlier| *earlier < view)
    }

    fn shards(&self) -> usize {
        self.trims.len().checked_div(self.views.len()).unwrap_or(0)
    }
}

/// In place of a trim: of this view and all before it nothing of the shard counts, since no log has it any more.
pub(super) const LOST: u64 = u64::MAX;

fn counts(trims: &[u64]) -> bool {
    trims.iter().any(|trim| *trim > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENDS: [[u64; 2]; 6] = [[0, 0], [3, 0], [0, 0], [0, 4], [0, 0], [5, 6]];

    fn chain(from: usize, to: usize) -> ViewChain {
        let mut chain = ViewChain::new(10 + from as u64);
        ENDS[from..to].iter().for_each(|trims| chain.push(trims));
        chain
    }

    /// All lists of these views say of each what the plain list says.
    #[test]
    fn a_list_says_how_each_view_has_ended() {
        for from in 0..=ENDS.len() {
            for to in from..=ENDS.len() {
                let list = chain(from, to);
                for view in 0..20 {
                    let plain = usize::try_from(view).unwrap().checked_sub(10);
                    let plain = plain.filter(|place| (from..to).contains(place)).map(|place| ENDS[place]);
                    assert_eq!(list.trim_of(view, 0), plain.map(|trims| trims[0]), "{list:?}");
                    assert_eq!(list.trim_of(view, 1), plain.map(|trims| trims[1]), "{list:?}");
                }
                let first: Vec<_> = list.of_shard(0).collect();
                let plain: Vec<_> =
                    (10..).zip(ENDS).take(to).skip(from).map(|(view, [trim, _])| (view, trim)).collect();
                assert_eq!(first, plain.into_iter().filter(|(_, trim)| *trim > 0).collect::<Vec<_>>());
            }
        }
    }

    #[test]
    fn lists_are_joined_where_they_meet_and_cut_anywhere() {
        let whole = chain(0, 6);
        for from in 0..=6 {
            for to in 0..=6 {
                let (mut later, earlier) = (chain(from, 6), chain(0, to));
                assert_eq!(later.extend(&earlier), from > 0 && from <= to);
                assert_eq!(later == whole, from == 0 || from <= to, "{from} {to}");
            }
            let mut cut = whole.clone();
            cut.forget_before(10 + from as u64);
            assert_eq!(cut, chain(from, 6));
        }
        let mut cut = whole.clone();
        cut.forget_before(3);
        assert_eq!(cut, whole);
        cut.forget_before(99);
        assert_eq!(cut, chain(6, 6));
    }

    /// A list that is taken over may say of a shard what was before it began again: that is void, and contradicts nothing.
    #[test]
    fn what_was_before_a_shard_began_again_is_void() {
        let mut later = ViewChain::new(13);
        later.push(&[4, LOST]);
        later.push(&[0, 2]);
        let mut earlier = ViewChain::new(10);
        [[1, 5], [0, 6], [2, 0], [4, 3]].iter().for_each(|trims| earlier.push(trims));
        assert!(!later.contradicts(&earlier) && !earlier.contradicts(&later));
        assert!(later.extend(&earlier));
        let mut expected = ViewChain::new(10);
        [[1, 0], [0, 0], [2, 0], [4, LOST], [0, 2]].iter().for_each(|trims| expected.push(trims));
        assert_eq!(later, expected);
        let mut other = ViewChain::new(12);
        [[3, 0], [4, 0], [0, 2]].iter().for_each(|trims| other.push(trims));
        assert!(later.contradicts(&other), "of the first shard view 12 ends in two ways");
    }

    /// A shard that begins again has nothing of before, and the mark of that stays until the list begins behind it.
    #[test]
    fn a_lost_shard_begins_again() {
        let mut chain = chain(1, 3);
        chain.push(&[3, 0]);
        chain.push(&[7, LOST]);
        chain.push(&[8, 9]);
        assert_eq!([0, 1].map(|shard| chain.begun_again(shard)), [0, 15]);
        assert_eq!([13, 14, 15].map(|view| chain.trim_of(view, 1)), [Some(0), Some(0), Some(9)]);
        assert_eq!(chain.of_shard(1).collect::<Vec<_>>(), [(15, 9)]);
        chain.forget_before(14);
        assert_eq!(chain.begun_again(1), 15);
        chain.forget_before(15);
        assert_eq!(chain.begun_again(1), 0);
    }

    #[test]
    fn views_without_messages_take_no_memory() {
        let mut chain = ViewChain::new(0);
        (0..1_000_000).for_each(|_| chain.push(&[0, 0, 0]));
        assert_eq!(
            (chain.end(), chain.counted().count(), chain.trim_of(999_999, 2)),
            (1_000_000, 0, Some(0))
        );
    }
}
