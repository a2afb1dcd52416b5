//! Network namespaces on one bridge, one for each member, so that the link between two of them can be cut.
//!
//! A link is cut by a route to nowhere: what a member sends to the other one vanishes, as on a broken cable. This needs
//! root and `ip`. It leaves nothing behind: what a killed run could not remove, the next one removes.

use std::net::{IpAddr, Ipv4Addr};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};

use crate::control::MemberLocation;

/// The namespaces of one run. Dropping it removes them.
pub(crate) struct NetworkNamespaces {
    bridge: String,
    spaces: Vec<String>,
}

impl NetworkNamespaces {
    /// Makes `count` namespaces.
    ///
    /// # Errors
    /// If this process lacks the permission, or there is no `ip`.
    pub(crate) fn build(count: usize) -> Result<Self> {
        ensure!(rustix::process::geteuid().is_root(), "network namespaces need root");
        remove_orphans();
        let bridge = format!("sqb{}", std::process::id());
        let mut network = Self { bridge: bridge.clone(), spaces: Vec::new() };
        ip(&format!("link add {bridge} type bridge"))?;
        ip(&format!("address add {}/24 dev {bridge}", address(HERE)))?;
        ip(&format!("link set {bridge} up"))?;
        for place in 0..count {
            network.add(place)?;
        }
        Ok(network)
    }

    fn add(&mut self, place: usize) -> Result<()> {
        let space = format!("{PREFIX}{}-{place}", std::process::id());
        let (bridge, cable) = (&self.bridge, format!("sq{}v{place}", std::process::id()));
        ip(&format!("netns add {space}"))?;
        self.spaces.push(space.clone());
        ip(&format!("link add {cable} type veth peer name cable netns {space}"))?;
        ip(&format!("link set {cable} master {bridge} up"))?;
        ip(&format!("-n {space} address add {}/24 dev cable", address(host(place))))?;
        ip(&format!("-n {space} link set cable up"))?;
        ip(&format!("-n {space} link set lo up"))
    }

    /// Where members can run.
    pub(crate) fn locations(&self) -> Vec<MemberLocation> {
        let location = |(place, space): (usize, &String)| MemberLocation {
            netns: Some(space.clone()),
            address: Some(IpAddr::V4(address(host(place)))),
            device: None,
        };
        self.spaces.iter().enumerate().map(location).collect()
    }

    /// Lets what the member at `from` sends to the one at `to` vanish, or arrive again.
    pub(crate) fn cut(&self, from: usize, to: usize, is_cut: bool) -> Result<()> {
        let change = if is_cut { "add" } else { "delete" };
        ip(&format!("-n {} route {change} blackhole {}/32", self.spaces[from], address(host(to))))
    }
}

impl Drop for NetworkNamespaces {
    fn drop(&mut self) {
        for space in &self.spaces {
            // The cables go with their namespaces; what is not there need not be removed.
            let _ = ip(&format!("netns delete {space}"));
        }
        let _ = ip(&format!("link delete {}", self.bridge));
    }
}

/// The namespaces of this process that exist.
pub(crate) fn left() -> Vec<String> {
    let own = format!("{PREFIX}{}-", std::process::id());
    spaces().into_iter().filter(|space| space.starts_with(&own)).collect()
}

/// All namespaces of runs like this.
fn spaces() -> Vec<String> {
    let entries = std::fs::read_dir("/run/netns").into_iter().flatten();
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    names.filter(|name| name.starts_with(PREFIX)).collect()
}

/// Removes what killed runs have left behind.
fn remove_orphans() {
    for space in spaces() {
        let owner = space[PREFIX.len()..].split('-').next().unwrap_or_default();
        if !std::path::Path::new(&format!("/proc/{owner}")).exists() {
            let _ = ip(&format!("netns delete {space}"));
            let _ = ip(&format!("link delete sqb{owner}"));
        }
    }
}

fn ip(arguments: &str) -> Result<()> {
    let mut command = Command::new("ip");
    command.args(arguments.split(' ')).stdin(Stdio::null()).stdout(Stdio::null());
    let output = command.output().context("cannot start `ip` (package iproute2)")?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "`ip {arguments}` failed: {}", stderr.trim_end());
    Ok(())
}

/// Of the network that is set aside for tests of devices (RFC 2544), a part by process.
fn address(host: u8) -> Ipv4Addr {
    Ipv4Addr::new(198, 18, (std::process::id() % 256) as u8, host)
}

fn host(place: usize) -> u8 {
    u8::try_from(place + 1).expect("there are few members")
}

const PREFIX: &str = "squall-chaos-";
/// This process' own number on the bridge.
const HERE: u8 = 254;
