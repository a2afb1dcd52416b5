//! The accounts of one shard, and the transfers that concern them.
//!
//! A transfer reads both accounts, then *prepares* both at one position: each account accepts if it is as it was read, and is locked
//! then. Then the transfer *finishes* both at one position: it is carried out if both have accepted, else it is given up. Whether both
//! have accepted is known from that position on, so a teller that finds an account locked can finish the transfer in place of a teller that
//! has died.

use std::collections::BTreeMap;
use std::io;

use serde::{Deserialize, Serialize};
use squall::object::{Replicated, Snapshot, restored};

/// What an account has that no transfer has touched.
pub(crate) const INITIAL: i64 = 1000;

/// A transfer: its teller, its number there, and what it moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct TransferOrder {
    pub(crate) teller: u64,
    pub(crate) number: u64,
    pub(crate) from: u32,
    pub(crate) to: u32,
    pub(crate) amount: i64,
}

impl TransferOrder {
    /// What it adds to an account.
    fn change(&self, account: u32) -> i64 {
        if account == self.from { -self.amount } else { self.amount }
    }
}

/// An account, as it is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct AccountState {
    pub(crate) balance: i64,
    /// How many transfers have changed it.
    pub(crate) version: u64,
    /// The transfer that has prepared it and is not finished.
    pub(crate) locked: Option<TransferOrder>,
}

impl Default for AccountState {
    fn default() -> Self {
        Self { balance: INITIAL, version: 0, locked: None }
    }
}

/// The accounts of one shard.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Ledger {
    accounts: BTreeMap<u32, AccountState>,
    /// How often each transfer was carried out here: once for each of its accounts that is in the shard.
    done: BTreeMap<TransferOrder, u32>,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) enum LedgerUpdate {
    /// Accept a transfer, if the account is unlocked and has this version.
    Prepare { transfer: TransferOrder, account: u32, version: u64 },
    /// Carry a transfer out or give it up, if the account has accepted it.
    Finish { transfer: TransferOrder, account: u32, is_commit: bool },
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) enum LedgerQuery {
    Account(u32),
    /// What the accounts have in excess of what they had at first.
    Surplus,
    Done,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum LedgerReply {
    Accepted(bool),
    Finished,
    Account(AccountState),
    Surplus(i64),
    Done(Vec<(TransferOrder, u32)>),
}

impl Replicated for Ledger {
    type Update = LedgerUpdate;
    type Query = LedgerQuery;
    type Reply = LedgerReply;

    fn apply(&mut self, update: LedgerUpdate) -> LedgerReply {
        match update {
            LedgerUpdate::Prepare { transfer, account, version } => {
                let state = self.accounts.entry(account).or_default();
                let is_as_read = state.version == version && state.locked.is_none();
                let accepts = is_as_read && state.balance + transfer.change(account) >= 0;
                if accepts {
                    state.locked = Some(transfer);
                }
                LedgerReply::Accepted(accepts)
            }
            LedgerUpdate::Finish { transfer, account, is_commit } => {
                let state = self.accounts.entry(account).or_default();
                if state.locked == Some(transfer) {
                    state.locked = None;
                    if is_commit {
                        state.balance += transfer.change(account);
                        state.version += 1;
                        *self.done.entry(transfer).or_default() += 1;
                    }
                }
                LedgerReply::Finished
            }
        }
    }

    fn query(&self, query: LedgerQuery) -> LedgerReply {
        match query {
            LedgerQuery::Account(account) => {
                LedgerReply::Account(self.accounts.get(&account).copied().unwrap_or_default())
            }
            LedgerQuery::Surplus => {
                LedgerReply::Surplus(self.accounts.values().map(|state| state.balance - INITIAL).sum())
            }
            LedgerQuery::Done => {
                LedgerReply::Done(self.done.iter().map(|(of, count)| (*of, *count)).collect())
            }
        }
    }

    fn snapshot(&self) -> Snapshot {
        Snapshot::of(self.clone())
    }

    fn restore(source: &mut dyn io::Read) -> io::Result<Self> {
        restored(source)
    }
}
