//! `squall chaos`: processes of a group are killed, halted and started at random, under load, and their accounts
//! compared.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use clap::Args;
use serde::Serialize;

use crate::Verdict;
use crate::accounts::Accounts;
use crate::cluster::churn::{ChurnPlan, Herd, START_TIMEOUT, State};
use crate::cluster::{Interrupts, check_locations};
use crate::control::{ChurnJob, Command, Location, TransportName};
use crate::member::churn::EXCLUDED;
use crate::{output, units};

/// Kill, halt and start members at random, under load, and compare what they have delivered
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// How long
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..))]
    seconds: u64,
    /// Processes, as far as they live
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u64).range(3..=16))]
    members: u64,
    /// How they reach each other
    #[arg(long, value_enum, default_value = "shm")]
    transport: TransportName,
    /// Where processes run, in turn: netns=NAME, address=IP, device=NAME, or several with commas between
    #[arg(long = "at", value_name = "LOCATION")]
    locations: Vec<Location>,
    /// Messages per second of each member
    #[arg(long, value_name = "N", default_value_t = 2000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pace: u32,
    /// Silence in milliseconds after which a halted member is taken for dead
    #[arg(long, value_name = "MS", default_value_t = 1000, value_parser = clap::value_parser!(u64).range(50..))]
    suspicion_ms: u64,
    /// What happens in which order; the times are the machine's
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Keep the accounts in this folder
    #[arg(long, value_name = "FOLDER")]
    keep: Option<PathBuf>,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str =
    "A member is killed (-9), or halted (-STOP) for less or more than the suspicion time, or a process \
joins; a majority of each view is left alone. At the end all must have delivered the same messages \
in the same order in each view, without a gap, and whatever anybody has delivered, the dead \
included, all that went on must have, too.

Examples:
  squall chaos
  squall chaos --transport tcp --seconds 600 --seed 7 --json";

#[derive(Debug, Default, Serialize)]
struct Outcome {
    transport: Option<TransportName>,
    seconds: f64,
    seed: u64,
    killed: u64,
    halted: u64,
    /// Members that found themselves excluded when they went on.
    excluded: u64,
    joined: u64,
    views: u64,
    /// Messages of which some member knows that all have received them.
    messages: u64,
    agree: bool,
    faults: Vec<String>,
}

pub(crate) fn run(arguments: &Arguments) -> Result<Verdict> {
    check_locations(arguments.transport, &arguments.locations)?;
    let members = usize::try_from(arguments.members).expect("at most 16");
    let folder = Folder::open(arguments.keep.as_deref())?;
    let job = ChurnJob {
        size: 64,
        pace: Some(arguments.pace),
        suspicion_ms: arguments.suspicion_ms,
        majority: true,
        account: None,
    };
    let (transport, locations) = (arguments.transport, arguments.locations.clone());
    let plan = ChurnPlan { transport, members, locations, job, folder: Some(folder.path.clone()) };
    let interrupts = Interrupts::take()?;
    let herd = Herd::start(plan, &interrupts)?;
    let outcome =
        Outcome { transport: Some(arguments.transport), seed: arguments.seed, ..Outcome::default() };
    let patience = 10 * Duration::from_millis(arguments.suspicion_ms) + Duration::from_secs(10);
    let suspicion = Duration::from_millis(arguments.suspicion_ms);
    let dice = Dice(arguments.seed ^ 0x5eed);
    let mut storm = Storm {
        herd,
        dice,
        members,
        suspicion,
        patience,
        halted: Vec::new(),
        outcome,
        quiet: arguments.json,
    };
    storm.rage(Duration::from_secs(arguments.seconds))?;
    storm.settle()?;
    let outcome = storm.judge()?;
    print(&outcome, arguments.json)?;
    Ok(if outcome.agree { Verdict::Good } else { Verdict::Bad })
}

/// The group, and what is done to it.
struct Storm {
    herd: Herd,
    dice: Dice,
    /// How many are to live.
    members: usize,
    suspicion: Duration,
    /// How long nothing may be delivered by a member that lives.
    patience: Duration,
    /// Who is halted, and when it goes on.
    halted: Vec<(usize, Instant)>,
    outcome: Outcome,
    quiet: bool,
}

impl Storm {
    fn rage(&mut self, time: Duration) -> Result<()> {
        let begun = Instant::now();
        let mut next_line = begun + LINE_PERIOD;
        while begun.elapsed() < time {
            let pause = Duration::from_millis(50 + self.dice.below(500));
            self.herd.rest(pause)?;
            self.resume_due(Instant::now());
            self.look_for_faults()?;
            let missing = self.members.saturating_sub(self.present());
            match self.dice.below(20) {
                0..=7 if missing > 0 => self.join()?,
                8..=11 => self.kill(),
                12..=14 => self.halt(),
                _ => {}
            }
            if !self.quiet && Instant::now() >= next_line {
                next_line += LINE_PERIOD;
                self.tell(begun.elapsed());
            }
        }
        self.outcome.seconds = begun.elapsed().as_secs_f64();
        Ok(())
    }

    /// Those that run or will.
    fn present(&self) -> usize {
        let is_present = |state: &State| matches!(state, State::Starting | State::Running | State::Halted);
        self.herd.lives.iter().filter(|life| is_present(&life.state)).count()
    }

    /// Whether the latest view keeps a majority that is well if one more falls out. As long as a view changes, nobody
    /// else is harmed than its majority can bear: who has heard of the next view, and who not, makes no difference.
    fn can_spare_one(&self) -> bool {
        let (_, ranks) = self.herd.view();
        let well = self.herd.running();
        let is_well = |rank: &&usize| well.iter().any(|life| self.herd.lives[*life].rank == **rank);
        let lost = ranks.len() - ranks.iter().filter(is_well).count();
        lost < (ranks.len() - 1) / 2
    }

    /// A member of the latest view that runs.
    fn victim(&mut self) -> Option<usize> {
        if !self.can_spare_one() {
            return None;
        }
        let (_, ranks) = self.herd.view();
        let running = self.herd.running();
        let members: Vec<usize> =
            running.into_iter().filter(|life| ranks.contains(&self.herd.lives[*life].rank)).collect();
        let place = self.dice.below(members.len() as u64);
        members.get(usize::try_from(place).unwrap_or(0)).copied()
    }

    fn kill(&mut self) {
        if let Some(victim) = self.victim() {
            self.herd.kill(victim);
            self.outcome.killed += 1;
        }
    }

    fn halt(&mut self) {
        if let Some(victim) = self.victim() {
            let times = 100 + self.dice.below(300);
            let time = self.suspicion.mul_f64(times as f64 / 100.0 - 0.9);
            self.herd.halt(victim);
            self.halted.push((victim, Instant::now() + time));
            self.outcome.halted += 1;
        }
    }

    fn join(&mut self) -> Result<()> {
        let taken = |rank: &usize| {
            let is_live = |state: &State| matches!(state, State::Starting | State::Running | State::Halted);
            self.herd.lives.iter().any(|life| life.rank == *rank && is_live(&life.state))
                || self.herd.view().1.contains(rank)
        };
        let free = (0..).find(|rank| !taken(rank)).expect("there are more ranks than members");
        self.herd.join(free)?;
        self.outcome.joined += 1;
        Ok(())
    }

    fn resume_due(&mut self, now: Instant) {
        let herd = &mut self.herd;
        self.halted.retain(|(number, until)| {
            if now >= *until {
                herd.resume(*number);
            }
            now < *until
        });
    }

    /// A member that fails must have been excluded, and nobody may stand still for long.
    fn look_for_faults(&mut self) -> Result<()> {
        let mut excluded = Vec::new();
        for (number, life) in self.herd.lives.iter().enumerate() {
            if let State::Failed(why) = &life.state {
                if !why.starts_with(EXCLUDED) {
                    bail!("process {number} of rank {} failed: {why}", life.rank);
                }
                self.outcome.excluded += 1;
                excluded.push(number);
            }
            if life.state == State::Running && life.delivered.1.elapsed() > self.patience {
                bail!("a hang: {} stands still for {:?}: {}", number, self.patience, self.herd.describe());
            }
        }
        // They wait to be told, and their ends are no longer of interest.
        for number in excluded {
            self.herd.tell(number, Command::Stop);
            self.herd.lives[number].state = State::Killed;
        }
        Ok(())
    }

    /// All go on; who is a member delivers all that there is.
    fn settle(&mut self) -> Result<()> {
        self.resume_due(Instant::now() + Duration::from_secs(1 << 20));
        // Time for those that were excluded to find out.
        self.herd.rest(2 * self.suspicion + Duration::from_secs(1))?;
        self.herd.wait("nobody starts any more", START_TIMEOUT, |herd| {
            herd.lives.iter().all(|life| life.state != State::Starting)
        })?;
        self.look_for_faults()?;
        for number in self.herd.running() {
            self.herd.tell(number, Command::Drain);
        }
        let is_done = |herd: &Herd| {
            let lives = herd.lives.iter().filter(|life| life.state == State::Running);
            lives.into_iter().all(|life| life.report.is_some())
        };
        self.herd.wait("all have delivered all of their own", self.patience + START_TIMEOUT, is_done)?;
        self.look_for_faults()
    }

    /// Compares the accounts.
    fn judge(mut self) -> Result<Outcome> {
        let mut accounts = Accounts::default();
        let survivors = self.herd.running();
        for (number, life) in self.herd.lives.iter().enumerate() {
            // Who was never let in has none.
            let path = life.account.as_deref().filter(|path| path.exists());
            if let Some(path) = path {
                accounts.read(path, survivors.contains(&number))?;
            }
        }
        for number in survivors {
            self.herd.tell(number, Command::Stop);
        }
        let mut outcome = self.outcome;
        outcome.faults = accounts.faults();
        (outcome.views, outcome.messages) = (accounts.views(), accounts.messages());
        outcome.agree = outcome.faults.is_empty() && outcome.messages > 0;
        Ok(outcome)
    }

    fn tell(&self, elapsed: Duration) {
        let Outcome { killed, halted, excluded, joined, .. } = &self.outcome;
        let (view, ranks) = self.herd.view();
        output::note(format_args!(
            "{:4} s: view {view} of {} members; {killed} killed, {halted} halted, {excluded} excluded, {joined} joined",
            elapsed.as_secs(),
            ranks.len(),
        ));
    }
}

fn print(outcome: &Outcome, json: bool) -> Result<()> {
    if json {
        output::line(serde_json::to_string(outcome)?);
        return Ok(());
    }
    let Outcome { seconds, killed, halted, excluded, joined, views, messages, .. } = outcome;
    output::line(format_args!(
        "{seconds:.0} s: {killed} killed, {halted} halted, of whom {excluded} were excluded, {joined} joined; {views} views."
    ));
    outcome.faults.iter().for_each(output::line);
    if outcome.agree {
        let messages = units::grouped(*messages);
        let verdict =
            format!("All accounts agree: {messages} messages, none lost, none twice, in one order.");
        output::line(console::style(verdict).green().bold());
    } else {
        output::line(console::style("THE ACCOUNTS DIFFER.").red().bold());
    }
    Ok(())
}

/// Where the accounts are: a folder of the user's, or one that is removed at the end.
struct Folder {
    path: PathBuf,
    is_ours: bool,
}

impl Folder {
    fn open(keep: Option<&Path>) -> Result<Self> {
        let ours = || std::env::temp_dir().join(format!("squall-chaos-{}", std::process::id()));
        let path = keep.map_or_else(|| Ok(ours()), std::path::absolute)?;
        std::fs::create_dir_all(&path)
            .with_context(|| format!("cannot make the folder {}", path.display()))?;
        Ok(Self { path, is_ours: keep.is_none() })
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if self.is_ours {
            // What cannot be removed is found in the folder for temporary files.
            let _ = std::fs::remove_dir_all(&self.path);
        }
    }
}

/// Chance by a seed (splitmix64).
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (x ^ (x >> 31)) % bound.max(1)
    }
}

/// Between lines that tell how it goes.
const LINE_PERIOD: Duration = Duration::from_secs(10);
