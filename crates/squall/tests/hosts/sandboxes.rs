//! Shared memory between process namespaces, and what is used where a sandbox refuses it.

use super::*;

/// Returns the addresses of three members.
fn contacts(network: Network) -> Vec<String> {
    let address = |number: u16| match network {
        Network::Shared => format!("127.0.0.1:{}", PORT + number),
        Network::OwnEach => format!("10.77.0.{number}:{PORT}"),
    };
    (1..=3).map(address).collect()
}

/// Two members and a joiner, in containers: the joiner gets the object's state, and clients reach all of them.
fn group_with_joiner(network: Network, transport: &str, sandbox: &str) {
    let contacts = contacts(network);
    let all = contacts.join(",");
    let role = |number: usize| {
        let rank = if number <= 2 { format!(" rank={}", number - 1) } else { String::new() };
        let listen = &contacts[number - 1];
        format!("member transport={transport} contacts={all} listen={listen} sandbox={sandbox}{rank}")
    };
    let start = |number| Host::start(network, number, &role(number)).begin();
    let mut members = vec![start(1), start(2)];
    members.iter().for_each(|member| member.expect("ready"));
    members[0].tell("add 7");
    members[0].expect("sum 7");
    members.push(start(3));
    members[2].expect("ready");
    members[2].tell("query");
    members[2].expect("sum 7");
    let client = Host::start(network, 4, &format!("client transport={transport} contacts={all}")).begin();
    (1..=3).for_each(|round| client.expect(&format!("sum {}", 7 + 100 * round)));
    let talker = Host::start(network, 5, &format!("talker transport={transport} contacts={all}")).begin();
    (0..3).for_each(|_| talker.expect("hello"));
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
