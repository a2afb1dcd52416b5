//! A minimal joiner, for tests of the members' side: it asks one contact after another, repeatedly.

use std::time::{Duration, Instant};

use squall_fabric::NodeId;

use super::bootstrap::{
    ANSWER_WITHIN, BootstrapError, BootstrapListener, BootstrapMember, BootstrapPlan, CallError, JoinCalls,
    JoinReply, Joined, LinkSocket, join_contacts,
};

/// The result of a join, when all links are established.
#[derive(Debug)]
pub(crate) struct TestJoined<S> {
    pub(crate) links: Joined<S>,
    pub(crate) leader: NodeId,
    pub(crate) token: Vec<u8>,
}

/// Joins; passes the replies of members to `on_reply`.
pub(crate) fn join<S: LinkSocket>(
    plan: &BootstrapPlan,
    listener: &BootstrapListener<S>,
    on_reply: &mut dyn FnMut(&JoinReply),
) -> Result<TestJoined<S::Secured>, BootstrapError> {
    let contacts = join_contacts(plan, listener, None)?;
    let deadline = Instant::now() + plan.timeout;
    JoinCalls::with(plan, "joiner", listener, |calls| {
        let (mut named, mut attempt) = (None, 0);
        while Instant::now() < deadline {
            let contact = named.take().unwrap_or_else(|| contacts[attempt % contacts.len()].clone());
            attempt += 1;
            let reply = calls.ask(&contact, plan.handshake_timeout, Instant::now() + ANSWER_WITHIN);
            reply.iter().for_each(&mut *on_reply);
            match reply {
                Ok(JoinReply::Admit { leader, members, token, .. }) => {
                    if link(calls, leader, &members, deadline).is_ok() {
                        return Ok(TestJoined { links: calls.finish()?, leader, token });
                    }
                    calls.abandon();
                }
                Ok(JoinReply::Redirect(leader)) => named = Some(leader),
                Err(CallError::Never(error)) => return Err(error),
                Ok(JoinReply::Wait(_)) | Err(_) => {}
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        let (contacts, waited, cause) = (contacts.clone(), plan.timeout, "the test has ended".into());
        Err(BootstrapError::NotAdmitted { contacts, waited, cause })
    })?
}

fn link<S: LinkSocket>(
    calls: &mut JoinCalls<'_, S>,
    leader: NodeId,
    members: &[BootstrapMember],
    until: Instant,
) -> Result<(), CallError> {
    let others = members.iter().filter(|member| member.node != leader);
    others.into_iter().try_for_each(|member| calls.link(member.node, &member.address, until))?;
    calls.report(until)
}
