//! The conformance suite: one test per axiom of [`crate::model`], generic over the backend.
//!
//! A backend implements [`Harness`] in its tests and calls [`conformance_suite!`](crate::conformance_suite),
//! which makes one `#[test]` per axiom. A test that needs a capability is skipped without it and prints that
//! it was skipped. Litmus tests check the axioms about order and visibility: the writer repeats a pattern
//! many times while readers look between any two steps of the cluster.

pub mod adopted;
pub mod bounds;
mod cluster;
pub mod completion;
pub mod failure;
pub mod grants;
pub mod mirrors;
pub mod order;
pub mod receive;
pub mod retirement;
pub mod revocation;

pub use self::cluster::{ConformanceCluster, GrantedLink};

use crate::Fabric;

/// A small cluster of one backend, in one process and driven by one thread.
pub trait Harness {
    /// The backend.
    type Fabric: Fabric;

    /// Creates `nodes` connected nodes, `NodeId(0)..NodeId(nodes)`; each can reach every other.
    fn new(nodes: u32) -> Self;

    /// Returns node `i`'s access to the network.
    fn node(&mut self, i: u32) -> &mut Self::Fabric;

    /// Lets some time pass (virtual or real, at most a millisecond) without polling any node.
    fn step(&mut self);

    /// Kills node `i` as `kill -9` would; `node(i)` is not called afterwards.
    fn kill(&mut self, i: u32);
}

/// Makes one `#[test]` per axiom for the backend of the [`Harness`] `$harness`.
///
/// Call it in a module of its own: the tests are named after the axioms.
#[macro_export]
macro_rules! conformance_suite {
    ($harness:ty) => {
        $crate::conformance_axioms!(conformance_tests, $harness);
    };
}

/// Returns all axioms by name, to be run one by one: `(name, test)`.
#[must_use]
pub fn axioms<H: Harness>() -> Vec<(&'static str, fn())> {
    crate::conformance_axioms!(conformance_list, H)
}

#[doc(hidden)]
#[macro_export]
macro_rules! conformance_axioms {
    ($then:ident, $harness:ty) => {
        $crate::$then! { $harness;
            order::f1_writes_of_one_connection_land_in_post_order,
            order::f1_connections_do_not_wait_for_each_other,
            order::f2_a_write_lands_in_its_range_only,
            order::f3_words_are_never_torn,
            order::f4_a_guard_shows_what_landed_before_it,
            order::f4_a_guard_in_another_region_shows_it_too,
            completion::f5_source_words_are_read_between_post_and_completion,
            completion::f5_values_are_captured_at_post_time,
            completion::f6_done_covers_all_earlier_posts,
            receive::f7_immediates_consume_receives_in_order,
            receive::f7_sends_consume_receives_in_order,
            receive::f7_a_stalled_send_holds_back_what_follows,
            receive::f7_without_a_receive_the_connection_breaks,
            receive::f7_a_send_longer_than_its_receive_breaks,
            grants::f8_a_grant_travels_as_plain_data,
            grants::f8_neighbours_write_one_region,
            grants::f8_a_forged_grant_is_refused,
            grants::f8_a_write_beyond_its_grant_is_refused,
            grants::f8_a_grant_is_for_its_peer_only,
            revocation::f9_nothing_lands_after_revoked,
            revocation::f9_neighbours_keep_writing,
            revocation::f10_done_means_placed_before_the_revocation,
            revocation::f10_a_refusal_breaks_until_opened_again,
            failure::f11_a_prefix_of_a_dead_writer_has_landed,
            failure::f11_a_dead_target_breaks_its_writers,
            failure::f11_survivors_keep_talking,
            failure::f11_opening_to_the_dead_breaks,
            failure::f11_close_breaks_the_other_end,
            failure::f12_writes_land_without_the_target,
            adopted::f13_adopted_memory_is_source_and_target,
            adopted::f13_writes_of_all_kinds_land_in_post_order,
            adopted::f13_arrivals_show_adopted_memory,
            grants::f13_a_forged_grant_of_adopted_memory_is_refused,
            revocation::f13_adopted_memory_is_fenced,
            failure::f13_a_prefix_of_a_dead_writer_has_landed,
            adopted::f14_released_memory_is_given_back,
            mirrors::m1_pushes_arrive_in_order_at_every_reader,
            mirrors::m1_order_holds_across_mirrors,
            mirrors::m1_values_are_captured_at_push_time,
            mirrors::m1_few_words_are_pushed_by_value,
            mirrors::m2_sight_follows_store_order,
            mirrors::m3_a_frozen_attachment_never_changes,
            mirrors::m3_other_readers_do_not_freeze,
            mirrors::m4_an_attachment_outlives_its_owner,
            mirrors::m5_pushes_after_attached_arrive,
            mirrors::m5_a_mirror_of_another_size_disconnects_its_owner,
            retirement::m1_words_of_one_mirror_follow_those_of_another,
            retirement::m6_a_retired_mirror_keeps_its_readers,
            retirement::m6_no_reader_attaches_a_retired_mirror,
            retirement::m6_mirrors_come_and_go,
            bounds::nothing_is_posted_before_connected,
            bounds::signalled_writes_fill_a_queue,
            bounds::sends_fill_a_queue,
            bounds::receives_fill_a_queue,
            bounds::an_endless_writer_is_held_back,
            bounds::misuse_panics,
        }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! conformance_tests {
    ($harness:ty; $($theme:ident :: $axiom:ident,)*) => {
        $(
            #[test]
            fn $axiom() {
                $crate::conformance::$theme::$axiom::<$harness>();
            }
        )*
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! conformance_list {
    ($harness:ty; $($theme:ident :: $axiom:ident,)*) => {
        vec![$((stringify!($axiom), $crate::conformance::$theme::$axiom::<$harness> as fn())),*]
    };
}
