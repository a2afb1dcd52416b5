//! Configurations that several tests of groups share.

use std::time::Duration;

use squall::Config;
use squall::config::{Address, SubgroupConfig, Transport};
use squall_transports::reserve_port;

/// Returns the configurations of three members and, as the last, of a joiner, with one subgroup. No other test may
/// use `name` on this host.
pub(crate) fn configs(
    transport: Transport,
    name: &str,
    suspicion_after: Duration,
    subgroup: (&str, SubgroupConfig),
) -> Vec<Config> {
    let ports = [(); 4].map(|()| reserve_port().unwrap());
    let base = Config::local(&format!("{name}-{}", std::process::id()), 3);
    let config = |rank: usize| {
        let address = |rank: usize| Address::Tcp { host: "127.0.0.1".into(), port: ports[rank] };
        let mut config = base.clone().for_rank(rank);
        if transport == Transport::Tcp {
            config.transport = transport;
            config.listen = address(rank);
            config.contacts = (0..3).map(address).collect();
        }
        config.rank = (rank < 3).then_some(rank);
        config.suspicion_after = Some(suspicion_after);
        config.subgroup(subgroup.0, subgroup.1.clone())
    };
    (0..4).map(config).collect()
}
