//! Finds the members of a group, and asks each for its status.

use std::collections::BTreeMap;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use anyhow::Result;
use squall::config::Address;
use squall::{Config, MemberStatus};

/// Returns the addresses to ask first: those that the user has named, or else the contacts.
pub(crate) fn first(config: &Config, named: &[Address]) -> Vec<Address> {
    let first = if named.is_empty() { &config.contacts } else { named };
    if first.is_empty() { vec![config.listen.clone()] } else { first.to_vec() }
}

/// An address that was asked, and its answer.
pub(crate) type AnsweredInquiry = (Address, Result<MemberStatus, String>);

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
                let _ = answers.send((address, answer));
            })?;
        }
        let left = deadline.saturating_duration_since(Instant::now());
        let Ok((address, answer)) = heard.recv_timeout(left) else { break };
        if let Ok(status) = &answer {
            to_ask.extend(status.members.iter().filter_map(|member| member.address.parse().ok()));
        }
        found.push((address, answer));
        let is_heard = |address: &Address| found.iter().any(|(other, _)| other == address);
        if to_ask.iter().all(|address| asked.contains_key(&address.to_string()))
            && asked.values().all(is_heard)
        {
            return Ok(found);
        }
    }
    let late = |address: &Address| {
        Err(format!("no answer from {address} within {timeout:.1?}: it hangs, or needs a longer --timeout"))
    };
    let silent = asked.into_values().filter(|address| found.iter().all(|(other, _)| other != address));
    let silent: Vec<AnsweredInquiry> = silent.map(|address| (address.clone(), late(&address))).collect();
    found.extend(silent);
    Ok(found)
}
