//! How members would reach each other: they meet as for a group, agree on their transports, and part.

use std::net::{IpAddr, TcpStream};

use anyhow::{Result, ensure};
use serde::Serialize;
use squall::config::Address;
use squall::{Config, assemble};
use squall_harness::terminal::output;
use squall_transports::bootstrap::BootstrapListener;
use squall_transports::composite::{CompositeFabric, CompositeSettings};

/// One other member.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct PeerReport {
    pub(crate) member: u32,
    pub(crate) address: String,
    #[serde(rename = "way")]
    pub(crate) transport: String,
    pub(crate) reason: String,
}

/// The addresses at which this member listens, as far as the configuration has them as numbers.
pub(crate) fn listen_addresses(config: &Config) -> Vec<IpAddr> {
    match &config.listen {
        Address::Tcp { host, .. } => host.parse().into_iter().collect(),
        _ => Vec::new(),
    }
}

/// Meets the other members, at which the doctor is also started.
pub(crate) fn meet(config: &Config) -> Result<Vec<PeerReport>> {
    ensure!(
        !config.listen.is_unix(),
        "all members of this configuration share memory, since `listen` is a Unix socket: there is nothing to choose"
    );
    let mut plan = config.plan();
    // Members that want to work must not meet the doctor.
    plan.agreement = plan.agreement.with("the program", "squall doctor");
    let listener = BootstrapListener::<TcpStream>::bind(&config.listen)?;
    output::note(format_args!("waiting for {} members at {}...", config.members, listener.address()));
    let assembly = assemble(&plan, &listener, &mut |_| ())?;
    let settings = CompositeSettings { verbs: Some(config.verbs.clone()), ..Default::default() };
    let fabric = CompositeFabric::new(assembly.node, assembly.streams, &settings)?;
    let report = |choice: &squall_transports::composite::TransportChoice| PeerReport {
        member: choice.peer.0,
        address: assembly.members[choice.peer.0 as usize].address.to_string(),
        transport: choice.transport.to_string(),
        reason: choice.reason.clone(),
    };
    Ok(fabric.choices().iter().map(report).collect())
}
