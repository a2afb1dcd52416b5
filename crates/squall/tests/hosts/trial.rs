//! The trial of a group: two members, a joiner that gets their state, and clients of all of them.

use super::*;

/// What differs between trials.
pub(crate) struct GroupTrial {
    pub(crate) network: Network,
    pub(crate) transport: &'static str,
    /// The members' addresses, as the configuration of all of them has it.
    pub(crate) contacts: [String; 3],
    /// Where they listen.
    pub(crate) listen: [String; 3],
    /// Further words of the members' roles.
    pub(crate) more: [String; 3],
}

impl GroupTrial {
    /// Members that listen at their contacts' addresses.
    pub(crate) fn at(network: Network, transport: &'static str, address: impl Fn(usize) -> String) -> Self {
        let contacts = [1, 2, 3].map(address);
        Self { network, transport, listen: contacts.clone(), contacts, more: Default::default() }
    }

    /// The joiner gets the object's state, and clients update the object, send and receive at each member.
    pub(crate) fn run(&self) {
        let Self { network, transport, .. } = *self;
        let all = self.contacts.join(",");
        let role = |number: usize| {
            let rank = if number <= 2 { format!(" rank={}", number - 1) } else { String::new() };
            let (listen, more) = (&self.listen[number - 1], &self.more[number - 1]);
            format!("member transport={transport} contacts={all} listen={listen}{rank}{more}")
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
        if network == Network::OwnEach {
            // Members, joiners and clients of all kinds have reached each member at one port.
            for member in &mut members {
                member.tell("ports");
                while !member.heard_is(&format!("ports {{{PORT}}}")) {}
            }
        }
    }
}
