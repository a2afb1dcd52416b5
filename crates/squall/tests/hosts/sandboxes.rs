//! Shared memory between process namespaces, and what is used where a sandbox refuses it.

use super::*;

/// Two members and a joiner, in containers.
fn group_with_joiner(network: Network, transport: &'static str, sandbox: &str) {
    let address = |number| match network {
        Network::Shared => format!("127.0.0.1:{}", usize::from(PORT) + number),
        Network::OwnEach => format!("10.77.0.{number}:{PORT}"),
    };
    let more = [(); 3].map(|()| format!(" sandbox={sandbox}"));
    GroupTrial { more, ..GroupTrial::at(network, transport, address) }.run();
}

fn stream(sandboxes: [&str; 2], transport: &str, network: Network) -> String {
    let at =
        if network == Network::Shared { format!("127.0.0.1:{PORT}") } else { format!("10.77.0.1:{PORT}") };
    let role = |name, sandbox| format!("{name} at={at} transport={transport} sandbox={sandbox}");
    let listener = Host::start(network, 1, &role("listener", sandboxes[0])).begin();
    let state = listener.heard();
    if state != "listening" {
        return state;
    }
    Host::start(network, 2, &role("caller", sandboxes[1])).begin().heard()
}

#[test]
fn a_group_by_tcp_in_containers_of_one_network() {
    in_lab("sandboxes::a_group_by_tcp_in_containers_of_one_network", || {
        group_with_joiner(Network::Shared, "tcp", "none");
    });
}

#[test]
fn a_group_by_auto_in_containers_of_one_network() {
    in_lab("sandboxes::a_group_by_auto_in_containers_of_one_network", || {
        group_with_joiner(Network::Shared, "auto", "none");
    });
}

#[test]
fn a_group_by_auto_in_containers_with_networks_of_their_own() {
    in_lab("sandboxes::a_group_by_auto_in_containers_with_networks_of_their_own", || {
        group_with_joiner(Network::OwnEach, "auto", "none");
    });
}

#[test]
fn a_group_by_auto_where_no_memory_can_be_shared() {
    in_lab("sandboxes::a_group_by_auto_where_no_memory_can_be_shared", || {
        group_with_joiner(Network::Shared, "auto", "no-memfd");
    });
}

/// A group that must share memory does, by a socket in a folder that both containers see.
#[test]
fn a_group_by_shm_in_containers() {
    in_lab("sandboxes::a_group_by_shm_in_containers", || {
        let folder = std::env::temp_dir().join(format!("squall-hosts-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let address = |number| format!("unix:{}/{number}", folder.display());
        let all = format!("{},{}", address(0), address(1));
        let role = |number: usize| {
            format!("member transport=shm contacts={all} listen={} rank={number}", address(number))
        };
        let members = [0, 1].map(|number| Host::start(Network::Shared, 1 + number, &role(number)).begin());
        members.iter().for_each(|member| member.expect("ready"));
        drop(members);
        std::fs::remove_dir_all(&folder).unwrap();
    });
}

/// It must share memory, and the message says why that is impossible and what to do.
#[test]
fn a_member_that_must_share_memory_and_cannot_says_why() {
    in_lab("sandboxes::a_member_that_must_share_memory_and_cannot_says_why", || {
        let role = "member transport=shm contacts=unix:@one,unix:@two rank=0 sandbox=no-memfd";
        let said = Host::start(Network::Shared, 1, role).begin().heard();
        assert!(
            said.starts_with("refused: ") && said.contains("memfd_create") && said.contains("\"tcp\""),
            "{said}"
        );
        let said = stream(["no-memfd", "none"], "shm", Network::Shared);
        assert!(said.contains("memfd_create"), "{said}");
        let said = stream(["none", "no-memfd"], "shm", Network::Shared);
        assert!(said.contains("memfd_create"), "{said}");
    });
}

#[test]
fn streams_between_containers_share_memory_if_they_share_a_network() {
    in_lab("sandboxes::streams_between_containers_share_memory_if_they_share_a_network", || {
        assert_eq!(stream(["none"; 2], "auto", Network::Shared), "hello by shared memory");
        assert_eq!(stream(["none"; 2], "auto", Network::OwnEach), "hello by TCP");
    });
}

#[test]
fn streams_use_tcp_if_either_end_cannot_share_memory() {
    in_lab("sandboxes::streams_use_tcp_if_either_end_cannot_share_memory", || {
        assert_eq!(stream(["no-memfd", "none"], "auto", Network::Shared), "hello by TCP");
        assert_eq!(stream(["none", "no-memfd"], "auto", Network::Shared), "hello by TCP");
    });
}
