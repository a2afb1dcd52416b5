//! Random runs: views with any members, crashes and removals, slow members, transfers that fail, clients that send
//! again (Derecho app. A).

use squall_fabric::NodeId;
use squall_fabric::sim::Prng;

use super::world::{ReplicaWorld, SentSnapshot, WorldFault, WorldWaiter, ensure};
use crate::replica::{Readiness, SessionAnswer, SnapshotOutcome, StateReply, UpdateOrigin, members_of_shard};

/// What all runs have done together.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ReplicaRunTally {
    views: u64,
    acknowledged: u64,
    denied: u64,
    transfers: u64,
    losses: u64,
    repeated: u64,
    restarts: u64,
    begun_again: u64,
}

/// A client: one update at a time, sent again until it is answered.
#[derive(Clone, Copy, Default)]
struct Client {
    session: Option<u64>,
    number: u64,
    id: u64,
}

struct Run {
    world: ReplicaWorld,
    prng: Prng,
    clients: [Client; 2],
    replicas: usize,
    nodes: u32,
    /// The members make the state again from their logs when all have ended.
    is_durable: bool,
    /// The probabilities of views, deaths, shards by weight, and ends of all members, per thousand.
    habits: [u32; 4],
    /// The view has ended, and the next one has not begun.
    is_wedged: bool,
    /// A member that lives and never answers requests for the state.
    hangs: Option<NodeId>,
    tally: ReplicaRunTally,
}

const MOVES: usize = 11;

/// The number of steps of one run before faults end.
const MOVES_PER_RUN: usize = 250;

/// Makes one run; returns what is wrong with it, if anything is.
pub(super) fn run(seed: u64, tally: &mut ReplicaRunTally) -> Result<(), WorldFault> {
    let mut prng = Prng::new(seed);
    let nodes = 1 + prng.below(5) as u32;
    let replicas = 1 + prng.index(3);
    let world = ReplicaWorld::new(nodes, |group| members_of_shard(0, replicas, group));
    let habits =
        [[50, 150, 600], [0, 50, 150], [1000, 500, 0], [0, 0, 100]].map(|choices| choices[prng.index(3)]);
    let hangs = prng.chance(200).then(|| NodeId(prng.below(6) as u32));
    let clients = Default::default();
    let (is_durable, is_wedged, tally_before) = (seed.is_multiple_of(2), false, *tally);
    let mut run = Run {
        world,
        prng,
        clients,
        replicas,
        nodes,
        is_durable,
        habits,
        is_wedged,
        hangs,
        tally: tally_before,
    };
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

    fn step(&mut self, chosen: usize) -> Result<(), WorldFault> {
        let node = self.any();
        match chosen {
            0 => {
                let id = self.world.update();
                self.world.send(node, None, id, WorldWaiter::Own(id));
            }
            1 => self.client(node),
            2 => self.world.order(node, self.prng.below(3)),
            3 | 4 => {
                self.world.advance(node);
                self.check_loss(node)?;
            }
            5 if self.is_wedged || self.prng.chance(self.habits[0]) => self.change_view(),
            6 if self.prng.chance(self.habits[1]) => self.fail(node),
            7 => self.ask(node),
            8 => self.hear()?,
            9 => self.question(node)?,
            10 if self.prng.chance(self.habits[3]) => self.restart(),
            _ => {}
        }
        self.world.check()
    }

    /// Lets a client send its next update through `node`, or again the one whose outcome it does not know.
    fn client(&mut self, node: NodeId) {
        let who = self.prng.index(self.clients.len());
        self.hear_answers();
        let client = &mut self.clients[who];
        let origin = match client.session {
            None => UpdateOrigin::Open(0),
            Some(id) => UpdateOrigin::Session { id, number: client.number, open: 0 },
        };
        if client.id == 0 {
            (client.id, client.number) = (self.world.update(), 1);
        } else {
            self.tally.repeated += 1;
        }
        let origin = match origin {
            UpdateOrigin::Session { id, .. } => UpdateOrigin::Session { id, number: client.number, open: 0 },
            other => other,
        };
        self.world.send(node, Some(origin), client.id, WorldWaiter::Client(who));
    }

    fn hear_answers(&mut self) {
        for (who, answer) in std::mem::take(&mut self.world.answers) {
            let client = &mut self.clients[who];
            match answer {
                SessionAnswer::Opened(id) => drop(client.session.get_or_insert(id)),
                // It may answer an update that was sent twice, when the next one has already been chosen.
                SessionAnswer::Reply(_) if self.world.acknowledged.contains_key(&client.id) => {
                    client.id = self.world.update();
                    client.number += 1;
                }
                SessionAnswer::Reply(_) | SessionAnswer::Overtaken => {}
                SessionAnswer::ReplyTooLong(_) => unreachable!("replies are words"),
                // The state of before is gone, and all its sessions with it. What the client sends now is something else.
                SessionAnswer::Forgotten if !self.is_durable => *client = Client::default(),
                SessionAnswer::Early | SessionAnswer::Forgotten => {
                    unreachable!("there are few sessions, each with one update")
                }
            }
        }
    }

    /// Ends the view, or, if it has ended, begins the next one: other steps may come in between.
    fn change_view(&mut self) {
        self.is_wedged = !self.is_wedged;
        if self.is_wedged {
            return self.world.wedge();
        }
        let mut group: Vec<_> =
            self.world.view().group.iter().copied().filter(|node| self.world.members[node].lives).collect();
        if group.len() > 1 && self.prng.chance(300) {
            // A false suspicion: the member lives, and is removed.
            group.remove(self.prng.index(group.len()));
        }
        while group.is_empty() || (group.len() < 6 && self.prng.chance(500)) {
            group.push(NodeId(self.nodes));
            self.nodes += 1;
        }
        let (replicas, by_weight) = (self.replicas, self.prng.chance(self.habits[2]));
        let mut any = group.clone();
        self.prng.shuffle(&mut any);
        self.world.begin_view(group, |nodes| match by_weight {
            true => members_of_shard(0, replicas, nodes),
            false => any.into_iter().filter(|node| nodes.contains(node)).take(replicas).collect(),
        });
        self.tally.views += 1;
    }

    /// All members die, and some of them begin again, if those that are left have all logs of the shard.
    fn restart(&mut self) {
        if !self.is_durable {
            return self.begin_again();
        }
        let view = self.world.view();
        let holds = |node: &NodeId| self.world.members[node].replica.position().is_some();
        // In a durable shard the logs of all members reach back to the beginning; in these runs those of its holders do.
        let mut back: Vec<_> = view.members.iter().copied().filter(holds).collect();
        self.prng.shuffle(&mut back);
        back.truncate(1 + self.prng.index(back.len().max(1)));
        if back.is_empty() {
            return;
        }
        self.is_wedged = false;
        self.world.restart(back, &mut self.prng);
        self.tally.restarts += 1;
    }

    /// All members die, and some of them begin again with a shard in memory.
    fn begin_again(&mut self) {
        let mut back = self.world.view().group.clone();
        self.prng.shuffle(&mut back);
        back.truncate(1 + self.prng.index(back.len()));
        self.is_wedged = false;
        let replicas = self.replicas;
        self.world.begin_again(back, |nodes| members_of_shard(0, replicas, nodes));
        self.tally.begun_again += 1;
    }

    fn fail(&mut self, node: NodeId) {
        if self.world.living().len() > 1 {
            self.world.stop(node);
        }
    }

    /// `node` asks for the state, if it waits for it.
    fn ask(&mut self, node: NodeId) {
        if self.world.in_flight.iter().any(|sent| sent.to == node) {
            return;
        }
        let Some((from, since)) = self.world.member(node).replica.ask() else { return };
        let provider = &self.world.members[&from];
        if provider.lives
            && self.hangs != Some(from)
            && let StateReply::State(snapshot) = provider.replica.provide_state(since)
        {
            self.world.in_flight.push(SentSnapshot { from, to: node, snapshot });
        }
    }

    /// Lets a joiner take what a state provider has sent, unless that died meanwhile.
    fn hear(&mut self) -> Result<(), WorldFault> {
        if self.world.in_flight.is_empty() {
            return Ok(());
        }
        let index = self.prng.index(self.world.in_flight.len());
        let SentSnapshot { from, to, snapshot } = self.world.in_flight.swap_remove(index);
        let breaks = !self.world.members[&from].lives && self.prng.chance(500);
        if breaks || !self.world.members[&to].lives {
            return Ok(());
        }
        match self.world.take_over(to, &snapshot)? {
            Some(SnapshotOutcome::Taken) => self.tally.transfers += 1,
            Some(SnapshotOutcome::NotWanted) => {}
            None => self.world.in_flight.push(SentSnapshot { from, to, snapshot }),
        }
        Ok(())
    }

    /// [A7] Checks that no member of its view has the state that `node` considers lost.
    fn check_loss(&mut self, node: NodeId) -> Result<(), WorldFault> {
        let replica = &self.world.members[&node].replica;
        let Some(view) = replica.view().filter(|_| replica.readiness(0) == Readiness::Lost) else {
            return Ok(());
        };
        self.tally.losses += 1;
        let has = |other: &&NodeId| {
            let other = &self.world.members[other];
            // A member that is behind may hold a state that was valid in its view.
            other.lives && other.replica.machine().is_some() && other.replica.view_id() >= Some(view.id)
        };
        let holder = view.group.iter().find(has);
        ensure!(holder.is_none(), "[A7] lost for {node:?} in {view:?}, but {holder:?} has it");
        Ok(())
    }

    /// [A5] Lets a member query another, in its view.
    fn question(&mut self, node: NodeId) -> Result<(), WorldFault> {
        let view = self.world.members[&node].replica.view_id().unwrap_or(0);
        let other = self.any();
        let replica = &self.world.members[&other].replica;
        let position = replica.position().unwrap_or_default();
        let answers = replica.readiness(view) == Readiness::Ready;
        ensure!(!answers || position.view >= view, "[A5] {other:?} at {position:?} answers view {view}");
        Ok(())
    }

    /// Runs until the end without faults: all members deliver everything, and those that wait for a state get it, or
    /// know that it is lost.
    fn calm(&mut self) -> Result<(), WorldFault> {
        if !self.is_wedged {
            self.change_view();
        }
        self.change_view();
        for _ in 0..2000 {
            let mut moved = false;
            for node in self.world.living() {
                self.world.order(node, 0);
                moved |= self.world.advance(node);
                moved |= self.world.members[&node].replica.is_waiting() && !self.is_stuck();
                if self.prng.chance(500) {
                    self.ask(node);
                }
            }
            while !self.world.in_flight.is_empty() {
                self.hear()?;
            }
            self.world.check()?;
            if !moved {
                return self.check_end();
            }
        }
        Err("[V8] members wait for the state forever".into())
    }

    /// Returns whether the only member that has the state never sends it.
    fn is_stuck(&self) -> bool {
        let holds = |node: &NodeId| self.world.members[node].replica.machine().is_some();
        self.hangs.is_some() && self.world.living().into_iter().filter(holds).eq(self.hangs)
    }

    fn check_end(&self) -> Result<(), WorldFault> {
        let members = self.world.view().members.iter().map(|node| (node, &self.world.members[node].replica));
        if self.is_stuck() {
            return Ok(());
        }
        let mut standings = members.map(|(_, replica)| replica.position().is_some());
        let first = standings.next();
        ensure!(
            standings.all(|holds| Some(holds) == first),
            "[A7] some hold the state, for others it is lost"
        );
        Ok(())
    }
}

/// The number of runs of one test; each takes about 50 µs, so many more can be made by hand.
const SEEDS: u64 = 3000;

/// Makes a few thousand runs, in which everything that can happen has happened.
#[test]
fn all_that_hold_the_state_hold_the_same() {
    let mut tally = ReplicaRunTally::default();
    for seed in 0..SEEDS {
        if let Err(fault) = run(seed, &mut tally) {
            panic!("seed {seed}: {fault}");
        }
    }
    println!("{tally:?}");
    let ReplicaRunTally { views, acknowledged, denied, transfers, losses, repeated, restarts, begun_again } =
        tally;
    let all = [views, acknowledged, denied, transfers, losses, repeated, restarts, begun_again];
    let least = all.into_iter().min();
    assert!(least > Some(100), "{tally:?}");
}
