//! Random runs: views with any members, crashes and removals, slow members, transfers that fail, clients that send
//! again (Derecho app. A).

use squall_fabric::NodeId;
use squall_fabric::sim::Prng;

use super::world::{Fault, Said, Waiting, World, ensure};
use crate::replica::{Give, Origin, Position, Readiness, SessionAnswer, TakeOver, members_of_shard};

/// What runs have done altogether.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Tally {
    views: u64,
    acknowledged: u64,
    denied: u64,
    transfers: u64,
    losses: u64,
    repeated: u64,
}

/// A client: one update at a time, sent again until it is answered.
#[derive(Clone, Copy, Default)]
struct Client {
    session: Option<u64>,
    number: u64,
    id: u64,
}

struct Run {
    world: World,
    prng: Prng,
    clients: [Client; 2],
    replicas: usize,
    nodes: u32,
    /// How likely views, deaths, and shards by weight are, in a thousand.
    habits: [u32; 3],
    tally: Tally,
}

const MOVES: usize = 10;

/// Moves of one run, before faults end.
const MOVES_PER_RUN: usize = 250;

/// One run; what is wrong with it, if anything is.
pub(super) fn run(seed: u64, tally: &mut Tally) -> Result<(), Fault> {
    let mut prng = Prng::new(seed);
    let nodes = 1 + prng.below(5) as u32;
    let replicas = 1 + prng.index(3);
    let group: Vec<_> = (0..nodes).map(NodeId).collect();
    let world = World::new(nodes, &members_of_shard(0, replicas, &group));
    let habits = [[50, 150, 600], [0, 50, 150], [1000, 500, 0]].map(|choices| choices[prng.index(3)]);
    let mut run = Run { world, prng, clients: Default::default(), replicas, nodes, habits, tally: *tally };
    let weights = [(); MOVES].map(|()| 1 + run.prng.below(9));
    for _ in 0..MOVES_PER_RUN {
        let mut at = run.prng.below(weights.iter().sum());
        let chosen = weights.iter().position(|weight| {
            let here = at < *weight;
            at = at.saturating_sub(*weight);
            here
        });
        run.step(chosen.expect("below the sum"))?;
    }
    run.calm()?;
    *tally = run.tally;
    tally.acknowledged += run.world.acknowledged.len() as u64;
    tally.denied += run.world.denied.len() as u64;
    Ok(())
}

impl Run {
    fn any(&mut self) -> NodeId {
        let living = self.world.living();
        living[self.prng.index(living.len())]
    }

    fn step(&mut self, chosen: usize) -> Result<(), Fault> {
        let node = self.any();
        match chosen {
            0 => {
                let id = self.world.update();
                self.world.send(node, None, id, Waiting::Own(id));
            }
            1 => self.client(node),
            2 => self.world.order(node, self.prng.below(3)),
            3 | 4 => drop(self.world.advance(node)),
            5 if self.prng.chance(self.habits[0]) => self.change_view(),
            6 if self.prng.chance(self.habits[1]) => self.fail(node),
            7 => self.ask(node),
            8 => self.hear()?,
            9 => {
                self.find_out(node);
                self.question(node)?;
            }
            _ => {}
        }
        self.world.check()
    }

    /// A client sends, through `node`: its next update, or again the one that it is not sure of.
    fn client(&mut self, node: NodeId) {
        let who = self.prng.index(self.clients.len());
        self.hear_answers();
        let client = &mut self.clients[who];
        let origin = match client.session {
            None => Origin::Open(0),
            Some(id) => Origin::Session { id, number: client.number },
        };
        if client.id == 0 {
            (client.id, client.number) = (self.world.update(), 1);
        } else {
            self.tally.repeated += 1;
        }
        let origin = match origin {
            Origin::Session { id, .. } => Origin::Session { id, number: client.number },
            other => other,
        };
        self.world.send(node, Some(origin), client.id, Waiting::Client(who));
    }

    fn hear_answers(&mut self) {
        for (who, answer) in std::mem::take(&mut self.world.answers) {
            let client = &mut self.clients[who];
            match answer {
                SessionAnswer::Opened(id) => drop(client.session.get_or_insert(id)),
                // It may answer an update that was sent twice: then the next has been chosen already.
                SessionAnswer::Reply(_) if self.world.acknowledged.contains_key(&client.id) => {
                    client.id = self.world.update();
                    client.number += 1;
                }
                SessionAnswer::Reply(_) | SessionAnswer::Overtaken => {}
                SessionAnswer::ReplyTooLong(_) => unreachable!("replies are words"),
                SessionAnswer::Forgotten => unreachable!("there are few sessions"),
            }
        }
    }

    fn change_view(&mut self) {
        let mut group: Vec<_> =
            self.world.view().group.iter().copied().filter(|node| self.world.members[node].lives).collect();
        if group.len() > 1 && self.prng.chance(300) {
            // A false suspicion: it lives, and is removed.
            group.remove(self.prng.index(group.len()));
        }
        while group.is_empty() || (group.len() < 6 && self.prng.chance(500)) {
            group.push(NodeId(self.nodes));
            self.nodes += 1;
        }
        let shard = if self.prng.chance(self.habits[2]) {
            members_of_shard(0, self.replicas, &group)
        } else {
            let mut any = group.clone();
            self.prng.shuffle(&mut any);
            any.truncate(self.replicas);
            any
        };
        self.world.begin_view(group, shard);
        self.tally.views += 1;
    }

    fn fail(&mut self, node: NodeId) {
        if self.world.living().len() > 1 {
            self.world.stop(node);
        }
    }

    /// `node` asks for the state, if it waits for it.
    fn ask(&mut self, node: NodeId) {
        if self.world.said.iter().any(|said| said.to == node) {
            return;
        }
        let Some((from, view, since)) = self.world.member(node).replica.ask() else { return };
        let giver = &self.world.members[&from];
        let give = if giver.lives { giver.replica.give(node, view, since) } else { Give::NotYet };
        let gift = match give {
            Give::NotYet => return self.world.member(node).replica.handle_no_answer(),
            Give::State(gift) => Some(gift),
            Give::Nothing => None,
        };
        self.world.said.push(Said { from, to: node, view, gift });
    }

    /// A newcomer hears what a giver has said, unless that died meanwhile.
    fn hear(&mut self) -> Result<(), Fault> {
        if self.world.said.is_empty() {
            return Ok(());
        }
        let index = self.prng.index(self.world.said.len());
        let Said { from, to, view, gift } = self.world.said.swap_remove(index);
        let breaks = !self.world.members[&from].lives && self.prng.chance(500);
        if breaks || !self.world.members[&to].lives {
            self.world.member(to).replica.handle_no_answer();
            return Ok(());
        }
        let replica = &mut self.world.member(to).replica;
        let Some(gift) = gift else {
            replica.handle_refusal(from, view);
            return self.check_loss(to);
        };
        let taken = replica.take_over(gift.position, &gift.sessions, gift.snapshot);
        if taken.map_err(|error| error.to_string())? == TakeOver::Taken {
            self.tally.transfers += 1;
            self.world.permit(to);
        }
        Ok(())
    }

    /// [A7] What `node` takes for lost nobody has.
    fn check_loss(&mut self, node: NodeId) -> Result<(), Fault> {
        let replica = &self.world.members[&node].replica;
        if replica.readiness(0) != Readiness::Lost {
            return Ok(());
        }
        self.tally.losses += 1;
        let (view, since) = (replica.view_id().unwrap_or(0), replica.since());
        let in_view = |other: &NodeId| replica.view().is_some_and(|view| view.group.contains(other));
        let has = |other: &NodeId| {
            let other = &self.world.members[other];
            let present = other.replica.view_id().unwrap_or(0);
            let gives =
                matches!(other.replica.give(node, present, Position::start_of(since)), Give::State(_));
            other.lives && (gives || other.replica.machine().is_some())
        };
        let holder = self.world.members.keys().find(|other| in_view(other) && has(other));
        ensure!(holder.is_none(), "[A7] lost for {node:?} in view {view}, but {holder:?} has it");
        Ok(())
    }

    /// Who keeps the state of a shard that it has left finds out whether the shard's members have it.
    fn find_out(&mut self, node: NodeId) {
        let Some((view, open)) = self.world.members[&node].replica.unsettled() else { return };
        for other in open {
            let replica = &self.world.members[&other].replica;
            let holds = replica.machine().is_some() && replica.view_id() == Some(view);
            if holds && self.world.members[&other].lives && self.prng.chance(500) {
                self.world.member(node).replica.handle_settled(other, view);
            }
        }
    }

    /// [A5] A member asks another, in its view.
    fn question(&mut self, node: NodeId) -> Result<(), Fault> {
        let view = self.world.members[&node].replica.view_id().unwrap_or(0);
        let other = self.any();
        let replica = &self.world.members[&other].replica;
        let position = replica.position().unwrap_or_default();
        let answers = replica.readiness(view) == Readiness::Ready;
        ensure!(!answers || position.view >= view, "[A5] {other:?} at {position:?} answers view {view}");
        Ok(())
    }

    /// Faults have ended: all deliver all, and whoever waits for a state gets it, or knows that it is lost.
    fn calm(&mut self) -> Result<(), Fault> {
        self.change_view();
        for _ in 0..2000 {
            let mut moved = false;
            for node in self.world.living() {
                self.world.order(node, 0);
                moved |= self.world.advance(node);
                moved |= self.world.members[&node].replica.is_waiting();
                if self.prng.chance(500) {
                    self.ask(node);
                }
                self.find_out(node);
            }
            while !self.world.said.is_empty() {
                self.hear()?;
            }
            self.world.check()?;
            if !moved {
                return self.check_end();
            }
        }
        Err("[V8] members wait for the state for ever".into())
    }

    fn check_end(&self) -> Result<(), Fault> {
        let members = self.world.view().members.iter().map(|node| (node, &self.world.members[node].replica));
        let mut standings = members.map(|(_, replica)| replica.position().is_some());
        let first = standings.next();
        ensure!(
            standings.all(|holds| Some(holds) == first),
            "[A7] some hold the state, for others it is lost"
        );
        Ok(())
    }
}

/// Runs of one test; more by hand: they take about 50 µs each.
const SEEDS: u64 = 3000;

/// A few thousand runs, in which everything has happened that can.
#[test]
fn all_that_hold_the_state_hold_the_same() {
    let mut tally = Tally::default();
    for seed in 0..SEEDS {
        if let Err(fault) = run(seed, &mut tally) {
            panic!("seed {seed}: {fault}");
        }
    }
    println!("{tally:?}");
    let Tally { views, acknowledged, denied, transfers, losses, repeated } = tally;
    let least = [views, acknowledged, denied, transfers, losses, repeated].into_iter().min();
    assert!(least > Some(100), "{tally:?}");
}
