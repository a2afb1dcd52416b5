//! Finds the members of a group, and asks each for its status.

use std::collections::BTreeMap;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use anyhow::Result;
use squall::config::Address;
use squall::{Config, MemberStatus};
use squall_transports::bootstrap::{clock_lead_millis, wall_clock_millis};

/// Returns the addresses to ask first: those that the user has named, or else the contacts.
pub(crate) fn first(config: &Config, named: &[Address]) -> Vec<Address> {
    let first = if named.is_empty() { &config.contacts } else { named };
    if first.is_empty() { vec![config.listen.clone()] } else { first.to_vec() }
}

/// An address that was asked, and its answer.
pub(crate) struct AnsweredInquiry {
    pub(crate) address: Address,
    pub(crate) answer: Result<MemberStatus, String>,
    /// By how much the member's clock is ahead of this host's, if it has answered.
    pub(crate) lead_millis: Option<i64>,
}

impl AnsweredInquiry {
    /// An answer that has just come.
    fn new(address: Address, answer: Result<MemberStatus, String>) -> Self {
        let lead = |status: &MemberStatus| clock_lead_millis(status.clock_millis, wall_clock_millis());
        let lead_millis = answer.as_ref().ok().map(lead);
        Self { address, answer, lead_millis }
    }
}

/// Asks `first`, and all members that any of them names: all at once, so that members that hang cost the time-out once.
pub(crate) fn ask(config: &Config, first: Vec<Address>, timeout: Duration) -> Result<Vec<AnsweredInquiry>> {
    let (answers, heard) = channel();
    let (mut asked, mut to_ask, mut found) = (BTreeMap::new(), first, Vec::new());
    let mut deadline = Instant::now();
    loop {
        for address in to_ask.drain(..) {
            if asked.contains_key(&address.to_string()) {
                continue;
            }
            asked.insert(address.to_string(), address.clone());
            deadline = Instant::now() + timeout;
            let (config, answers) = (config.clone(), answers.clone());
            // It may outlive this function; its answer is lost then.
            std::thread::Builder::new().spawn(move || {
                let answer = squall::ask_status(&config, &address).map_err(|error| error.to_string());
                let _ = answers.send(AnsweredInquiry::new(address, answer));
            })?;
        }
        let left = deadline.saturating_duration_since(Instant::now());
        let Ok(inquiry) = heard.recv_timeout(left) else { break };
        if let Ok(status) = &inquiry.answer {
            to_ask.extend(status.members.iter().filter_map(|member| member.address.parse().ok()));
        }
        found.push(inquiry);
        let is_heard = |address: &Address| found.iter().any(|other| other.address == *address);
        if to_ask.iter().all(|address| asked.contains_key(&address.to_string()))
            && asked.values().all(is_heard)
        {
            return Ok(found);
        }
    }
    let late = |address: &Address| {
        Err(format!("no answer from {address} within {timeout:.1?}: it hangs, or needs a longer --timeout"))
    };
    let silent = asked.into_values().filter(|address| found.iter().all(|other| other.address != *address));
    let silent: Vec<AnsweredInquiry> =
        silent.map(|address| AnsweredInquiry::new(address.clone(), late(&address))).collect();
    found.extend(silent);
    Ok(found)
}
