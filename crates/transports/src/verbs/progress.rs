//! Reports of the device: completed posts, failed posts, and sends and immediate values that have arrived.

use std::collections::VecDeque;

use squall_fabric::{ConnId, FabricEvent};

use super::VerbsFabric;
use super::completion::BATCH;
use super::connections::conn_id;
use super::control::VerbsLoss;
use super::endpoint::{EndpointRole, EndpointState, Flushed, VerbsReceive, split_request};
use super::ffi;
use super::frame::{VerbsCloseReason, VerbsFrame};
use super::order;
use super::post::VerbsTarget;

impl VerbsFabric {
    /// Passes waiting posts to the device, with one doorbell for each connection that has new ones. Returns
    /// their number.
    pub(super) fn flush_posts(&mut self) -> usize {
        let (mut flushed, mut failed) = (0, Vec::new());
        let Self { endpoints, peers, counters, .. } = self;
        endpoints.flush(|number, peer, outcome| match outcome {
            Ok(Flushed { posts, doorbells, bytes }) => {
                peers[peer].bell.on_posts(posts);
                peers[peer].bytes_sent += bytes;
                counters.posts += posts as u64;
                counters.doorbells += doorbells as u64;
                flushed += posts;
            }
            Err(error) => failed.push((number, error)),
        });
        for (number, error) in failed {
            crate::log::error!(%error, "the device accepts no post");
            self.fail(number, Some(VerbsCloseReason::Unreachable));
        }
        flushed
    }

    /// Takes completions from the device, up to a bound. Returns their number.
    pub(super) fn poll_completions(&mut self) -> usize {
        // `None` if this is called while completions are handled.
        let Some(mut batch) = self.endpoints.batch.take() else { return 0 };
        let mut handled = 0;
        for place in 0..self.endpoints.completions.count() {
            for _ in 0..BATCHES_MAX {
                let taken = self.endpoints.completions.poll(place, &mut batch);
                order::from_device();
                let last = taken.len() < BATCH;
                handled += taken.len();
                self.counters.completions += taken.len() as u64;
                for completion in taken {
                    self.handle_completion(completion);
                }
                if last {
                    break;
                }
            }
        }
        self.endpoints.batch = Some(batch);
        handled
    }

    fn handle_completion(&mut self, completion: &ffi::ibv_wc) {
        let (number, is_receive) = split_request(completion.wr_id);
        let Some(endpoint) = self.endpoints.live(number) else { return };
        match (is_receive, completion.status) {
            (false, ffi::IBV_WC_SUCCESS) => self.on_landed(number, completion.wr_id),
            (false, status) => self.on_failed_post(number, completion.wr_id, status),
            (true, ffi::IBV_WC_SUCCESS) => {
                if let EndpointRole::Channel(place) = endpoint.role {
                    let receive = endpoint.take_receive();
                    self.events.push_back(arrival(conn_id(place), &receive, completion));
                }
            }
            // The queue pair has ended; the peer reports the reason.
            (true, ffi::IBV_WC_WR_FLUSH_ERR) => endpoint.state = EndpointState::Failed,
            (true, status) => {
                crate::log::warn!(status, "a receive failed");
                self.fail(number, Some(VerbsCloseReason::Protocol));
            }
        }
    }

    /// Handles a completion: the post and all before it on its queue pair have landed [F6].
    fn on_landed(&mut self, number: u32, request: u64) {
        let Self { endpoints, events, regions, peers, .. } = self;
        let Some(endpoint) = endpoints.live(number) else { return };
        let (role, peer, mut landed) = (endpoint.role, endpoint.peer, 0);
        endpoint.retire(request, |post| {
            regions.end_post(&post);
            landed += 1;
            if let (EndpointRole::Channel(place), Some(token)) = (role, post.signal) {
                events.push_back(FabricEvent::Done { conn: conn_id(place), token });
            }
        });
        if peers[peer].bell.on_landed(landed) {
            self.counters.rings += 1;
            peers[peer].send(VerbsFrame::Ring);
        }
    }

    /// Handles a failed post: all posts before it on its queue pair have landed, and none after it will.
    fn on_failed_post(&mut self, number: u32, request: u64, status: ffi::ibv_wc_status) {
        let Some(endpoint) = self.endpoints.live(number) else { return };
        if let Some(before) = endpoint.request_before(request) {
            self.on_landed(number, before);
        }
        let Some(endpoint) = self.endpoints.live(number) else { return };
        let target = endpoint.oldest().expect("the post that failed").target;
        match (endpoint.role, target) {
            (EndpointRole::MirrorOut, VerbsTarget::Attachment { attachment, .. }) if is_refusal(status) => {
                let peer = endpoint.peer;
                self.on_push_refused(peer, attachment);
            }
            _ => self.fail(number, verdict(status, target)),
        }
    }

    /// Handles the failure of an endpoint; `reason` is `None` if only the peer knows the reason.
    fn fail(&mut self, number: u32, reason: Option<VerbsCloseReason>) {
        let Some(endpoint) = self.endpoints.live(number) else { return };
        match (endpoint.role, reason) {
            (EndpointRole::Channel(_), None) => endpoint.state = EndpointState::Failed,
            (EndpointRole::Channel(place), Some(VerbsCloseReason::Refused)) => self.on_refused(place),
            (EndpointRole::Channel(place), Some(reason)) => self.break_connection(place, reason),
            (EndpointRole::MirrorOut | EndpointRole::MirrorIn, _) => {
                let peer = endpoint.peer;
                self.lose(peer, &VerbsLoss::Unreachable("pushes do not reach it".into()));
            }
        }
    }

    /// Ends an endpoint and releases what its posts hold. Returns its receives.
    pub(super) fn end_endpoint(&mut self, number: u32) -> VecDeque<VerbsReceive> {
        let Some(endpoint) = self.endpoints.live(number) else { return VecDeque::new() };
        let peer = endpoint.peer;
        let work = self.endpoints.end(number).expect("it lives");
        work.posts.iter().for_each(|post| self.regions.end_post(post));
        self.peers[peer].bell.on_gone(work.sent);
        order::from_device();
        work.receives
    }
}

/// Returns the event for a completed receive.
fn arrival(conn: ConnId, receive: &VerbsReceive, completion: &ffi::ibv_wc) -> FabricEvent {
    let token = receive.token;
    if completion.opcode == ffi::IBV_WC_RECV_RDMA_WITH_IMM {
        // SAFETY: such a completion has this member.
        let immediate = u32::from_be(unsafe { completion.__bindgen_anon_1.imm_data });
        return FabricEvent::Arrived { conn, token, immediate };
    }
    FabricEvent::Received { conn, token, length: completion.byte_len as usize }
}

/// Returns whether the peer's device has refused a write: its key is not valid (any more), or its queue pair
/// does not allow writes.
fn is_refusal(status: ffi::ibv_wc_status) -> bool {
    matches!(status, ffi::IBV_WC_REM_ACCESS_ERR | ffi::IBV_WC_REM_INV_REQ_ERR)
}

/// Returns why a post to a connection failed; `None` if the queue pair was ended by something else, which the
/// peer will report.
fn verdict(status: ffi::ibv_wc_status, target: VerbsTarget) -> Option<VerbsCloseReason> {
    match status {
        ffi::IBV_WC_WR_FLUSH_ERR => None,
        // A send is not written under a grant, so it was longer than its receive.
        status if is_refusal(status) && target != VerbsTarget::Receive => Some(VerbsCloseReason::Refused),
        ffi::IBV_WC_RNR_RETRY_EXC_ERR => Some(VerbsCloseReason::ReceiverNotReady),
        ffi::IBV_WC_RETRY_EXC_ERR => Some(VerbsCloseReason::Unreachable),
        _ => Some(VerbsCloseReason::Protocol),
    }
}

/// The most batches of completions that one poll takes from each queue.
const BATCHES_MAX: usize = 16;

#[cfg(test)]
mod tests {
    use super::super::post::RemoteMemory;
    use super::*;

    #[test]
    fn a_status_is_interpreted_by_the_kind_of_post() {
        let write = VerbsTarget::Memory { remote: RemoteMemory { address: 0, key: 0 }, immediate: None };
        for status in [ffi::IBV_WC_REM_ACCESS_ERR, ffi::IBV_WC_REM_INV_REQ_ERR] {
            assert_eq!(verdict(status, write), Some(VerbsCloseReason::Refused));
            assert_eq!(verdict(status, VerbsTarget::Receive), Some(VerbsCloseReason::Protocol));
        }
        assert_eq!(verdict(ffi::IBV_WC_RETRY_EXC_ERR, write), Some(VerbsCloseReason::Unreachable));
        assert_eq!(verdict(ffi::IBV_WC_RNR_RETRY_EXC_ERR, write), Some(VerbsCloseReason::ReceiverNotReady));
        assert_eq!(verdict(ffi::IBV_WC_WR_FLUSH_ERR, write), None, "another post was the cause");
    }
}
