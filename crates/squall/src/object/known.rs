//! What a client outside the group knows of it, and the thread that keeps that up to date (Derecho app. A: external
//! clients). [`Contacts`] decides when members are asked.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, Weak, mpsc};
use std::time::{Duration, Instant};

use squall_fabric::NodeId;
use squall_fabric::mutex::lock;
use squall_protocols::membership::{MEMBERS_MAX, Member, RankSet, View};
use squall_protocols::replica::Contacts;
use squall_transports::bootstrap::Address;
use squall_transports::log;

use crate::config::Config;
use crate::operate::inquiry::{self, MemberLine, MemberStatus};

/// The members that a client knows.
pub(super) struct KnownMembers {
    contacts: Mutex<Contacts<Address>>,
    /// The origin of the times of `contacts`.
    start: Instant,
    /// Wakes the thread; the thread ends when it is dropped.
    news: Mutex<Option<mpsc::SyncSender<()>>>,
}

impl KnownMembers {
    pub(super) fn new(config: &Config) -> Self {
        let contacts = Mutex::new(Contacts::new(config.contacts.clone(), PERIOD));
        Self { contacts, start: Instant::now(), news: Mutex::default() }
    }

    fn contacts(&self) -> MutexGuard<'_, Contacts<Address>> {
        lock(&self.contacts)
    }

    fn now(&self) -> squall_fabric::Instant {
        squall_fabric::Instant::from_nanos(0) + self.start.elapsed()
    }

    pub(super) fn view(&self) -> View {
        self.contacts().view().clone()
    }

    pub(super) fn view_id(&self) -> u64 {
        self.contacts().view().id
    }

    pub(super) fn address(&self, node: NodeId) -> Option<Address> {
        self.contacts().address(node).cloned()
    }

    /// Notes that a member that answered is in this view.
    pub(super) fn handle_view(&self, view: u64) {
        if self.contacts().handle_view(view) {
            self.wake();
        }
    }

    /// Notes that a member has failed or left.
    pub(super) fn handle_failure(&self) {
        if self.contacts().handle_failure() {
            self.wake();
        }
    }

    /// Wakes the thread, which is to ask earlier than it has planned.
    fn wake(&self) {
        if let Some(news) = &*lock(&self.news) {
            // If there is news already, the thread wakes anyway.
            let _ = news.try_send(());
        }
    }

    /// Asks for the current members.
    pub(super) fn refresh(&self, config: &Config) -> Result<(), String> {
        let mut cause = "there is no contact: set `contacts` in the configuration".to_owned();
        let candidates = self.contacts().candidates();
        for address in candidates {
            match inquiry::ask_status(config, &address) {
                Ok(status) => {
                    let (node, view, members) = read(status);
                    log::debug!(view = view.id, members = members.len(), %node, "a member names the members");
                    self.contacts().handle_members(self.now(), node, view, members);
                    return Ok(());
                }
                Err(error) => cause = error.to_string(),
            }
        }
        self.contacts().handle_silence(self.now());
        Err(cause)
    }

    /// Starts the thread that asks for the members when it is time, until `known` is dropped.
    pub(super) fn watch(known: &Arc<Self>, config: &Arc<Config>) -> io::Result<()> {
        let (send, receive) = mpsc::sync_channel(1);
        *lock(&known.news) = Some(send);
        let (known, config) = (Arc::downgrade(known), Arc::clone(config));
        let run = move || while wait(&known, &receive) && refresh_due(&known, &config) {};
        std::thread::Builder::new().name("squall contacts".into()).spawn(run).map(drop)
    }
}

/// Waits until it is time to ask, or there is a new view; returns whether there is still a client.
fn wait(known: &Weak<KnownMembers>, news: &mpsc::Receiver<()>) -> bool {
    let Some(known) = known.upgrade() else { return false };
    let at = known.contacts().next_at();
    let span = at.since(known.now());
    drop(known);
    news.recv_timeout(span) != Err(mpsc::RecvTimeoutError::Disconnected)
}

/// Asks for the members if it is time; returns whether there is still a client.
fn refresh_due(known: &Weak<KnownMembers>, config: &Config) -> bool {
    let Some(known) = known.upgrade() else { return false };
    let at = known.contacts().next_at();
    if at <= known.now()
        && let Err(error) = known.refresh(config)
    {
        log::debug!(error, "no member answers this client: it will ask again");
    }
    true
}

/// Returns the node that answers, its view, and the addresses at which the members listen.
fn read(status: MemberStatus) -> (NodeId, View, BTreeMap<NodeId, Address>) {
    let MemberStatus { node, view: id, members: lines, leaving, holders, .. } = status;
    let place = |line: &MemberLine| Some((NodeId(line.node), line.address.parse().ok()?));
    let addresses = lines.iter().filter_map(place).collect();
    let member = |line: &MemberLine| Member { node: NodeId(line.node), tag: line.rank };
    let members: Vec<Member> = lines.iter().map(member).collect();
    // What is no rank of the view is left out.
    let set = |ranks: Vec<usize>| {
        ranks.into_iter().filter(|rank| *rank < members.len().min(MEMBERS_MAX)).collect::<RankSet>()
    };
    let (leaving, holders) = (set(leaving), holders.into_iter().map(set).collect());
    (NodeId(node), View { id, members, leaving, holders }, addresses)
}

/// How often an idle client asks for the members: faster than an operator can replace all members of a group, and
/// only a few hundred bytes each time.
const PERIOD: Duration = Duration::from_secs(2);
