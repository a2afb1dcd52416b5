//! Shows that every test of the conformance suite can fail: for each there is a fabric that breaks exactly
//! that promise, and the test detects it. A test without such a fabric is not trusted, so a new test needs a
//! line here.

#[path = "broken_fabrics/breach.rs"]
mod breach;
#[path = "broken_fabrics/fabric.rs"]
mod fabric;

use std::panic::{catch_unwind, set_hook, take_hook};

use squall_fabric::conformance;

use crate::breach::Breach;
use crate::fabric::BrokenHarness;

/// The breach that each test must detect.
const CAUGHT: [(&str, Breach); 56] = [
    ("f1_writes_of_one_connection_land_in_post_order", Breach::SwapWrites),
    ("f1_connections_do_not_wait_for_each_other", Breach::StallAllAfterSend),
    ("f2_a_write_lands_in_its_range_only", Breach::SpillOver),
    ("f3_words_are_never_torn", Breach::TearWords),
    ("f4_a_guard_shows_what_landed_before_it", Breach::SwapWrites),
    ("f4_a_guard_in_another_region_shows_it_too", Breach::SwapWrites),
    ("f5_source_words_are_read_between_post_and_completion", Breach::ReadAfterDone),
    ("f5_values_are_captured_at_post_time", Breach::LateValues),
    ("f6_done_covers_all_earlier_posts", Breach::EarlyDone),
    ("f7_immediates_consume_receives_in_order", Breach::SwapWrites),
    ("f7_sends_consume_receives_in_order", Breach::ShortenSends),
    ("f7_a_stalled_send_holds_back_what_follows", Breach::LandAtOnce),
    ("f7_without_a_receive_the_connection_breaks", Breach::HideBreaks),
    ("f7_a_send_longer_than_its_receive_breaks", Breach::ShortenSends),
    ("f8_a_grant_travels_as_plain_data", Breach::ShiftOffsets),
    ("f8_neighbours_write_one_region", Breach::SpillOver),
    ("f8_a_forged_grant_is_refused", Breach::CheckNoGrant),
    ("f8_a_write_beyond_its_grant_is_refused", Breach::CheckNoGrant),
    ("f8_a_grant_is_for_its_peer_only", Breach::CheckNoGrant),
    ("f9_nothing_lands_after_revoked", Breach::WriteAfterRevoked),
    ("f9_neighbours_keep_writing", Breach::RevokeNeighbours),
    ("f10_done_means_placed_before_the_revocation", Breach::EarlyDone),
    ("f10_a_refusal_breaks_until_opened_again", Breach::PostToTheDead),
    ("f11_a_prefix_of_a_dead_writer_has_landed", Breach::SwapWrites),
    ("f11_a_dead_target_breaks_its_writers", Breach::PostToTheDead),
    ("f11_survivors_keep_talking", Breach::CloseAllAtLoss),
    ("f11_opening_to_the_dead_breaks", Breach::HideBreaks),
    ("f11_close_breaks_the_other_end", Breach::HideBreaks),
    ("f12_writes_land_without_the_target", Breach::ClaimOneSidedProgress),
    ("f13_adopted_memory_is_source_and_target", Breach::ShiftOffsets),
    ("f13_writes_of_all_kinds_land_in_post_order", Breach::SwapWrites),
    ("f13_arrivals_show_adopted_memory", Breach::SwapWrites),
    ("f13_a_forged_grant_of_adopted_memory_is_refused", Breach::CheckNoGrant),
    ("f13_adopted_memory_is_fenced", Breach::WriteAfterRevoked),
    ("f13_a_prefix_of_a_dead_writer_has_landed", Breach::SwapWrites),
    ("f14_released_memory_is_given_back", Breach::KeepAdopted),
    ("m1_pushes_arrive_in_order_at_every_reader", Breach::SwapPushes),
    ("m1_order_holds_across_mirrors", Breach::SwapPushes),
    ("m1_values_are_captured_at_push_time", Breach::PushWordsByReference),
    ("m1_few_words_are_pushed_by_value", Breach::PushWordsByReference),
    ("m2_sight_follows_store_order", Breach::DenyEarlySight),
    ("m3_a_frozen_attachment_never_changes", Breach::ThawAttachments),
    ("m3_other_readers_do_not_freeze", Breach::FreezeAll),
    ("m4_an_attachment_outlives_its_owner", Breach::ForgetTheDead),
    ("m5_pushes_after_attached_arrive", Breach::AttachedTooEarly),
    ("m5_a_mirror_of_another_size_disconnects_its_owner", Breach::HideBreaks),
    ("m1_words_of_one_mirror_follow_those_of_another", Breach::SwapWords),
    ("m6_a_retired_mirror_keeps_its_readers", Breach::RetireAll),
    ("m6_no_reader_attaches_a_retired_mirror", Breach::KeepMirrors),
    ("m6_mirrors_come_and_go", Breach::RetireAll),
    ("nothing_is_posted_before_connected", Breach::PostToTheDead),
    ("signalled_writes_fill_a_queue", Breach::NeverFull),
    ("sends_fill_a_queue", Breach::NeverFull),
    ("receives_fill_a_queue", Breach::NeverFull),
    ("an_endless_writer_is_held_back", Breach::NeverFull),
    ("misuse_panics", Breach::Lenient),
];

/// Each test passes on the underlying fabric and fails, within a few seeds, on the one with its breach.
#[test]
fn every_test_of_the_suite_can_fail() {
    let hook = take_hook();
    set_hook(Box::new(|_| {}));
    let missed: Vec<String> = conformance::axioms::<BrokenHarness>()
        .into_iter()
        .filter_map(|(name, axiom)| missed(name, axiom))
        .collect();
    set_hook(hook);
    assert!(missed.is_empty(), "{}", missed.join("\n"));
}

/// Returns what is wrong with a test, if anything.
fn missed(name: &str, axiom: fn()) -> Option<String> {
    let Some((_, breach)) = CAUGHT.iter().find(|(caught, _)| *caught == name) else {
        return Some(format!("{name} has no breach in CAUGHT (add the one that it detects)"));
    };
    let fails = |breach, seed| {
        BrokenHarness::next(breach, seed);
        catch_unwind(axiom).is_err()
    };
    if let Some(seed) = (0..SEEDS).find(|seed| fails(Breach::None, seed * 100)) {
        return Some(format!("{name} fails on a fabric that keeps its promises, seed {}", seed * 100));
    }
    let caught = (0..SEEDS).any(|seed| fails(*breach, seed * 100));
    (!caught).then(|| format!("{name} does not detect {breach:?} in {SEEDS} seeds"))
}

const SEEDS: u64 = 5;
