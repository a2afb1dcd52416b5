//! A member of the group, and its teller, which makes transfers between any accounts.

use std::io::{BufRead as _, Write as _};
use std::sync::Arc;
use std::time::Duration;
use std::{io, process, thread};

use squall::object::{ObjectError, ShardedObject};
use squall::{Config, Group};
use squall_fabric::atomics::{AtomicBool, Ordering};

use crate::bank::ledger::{AccountState, Ledger, LedgerQuery, LedgerReply, LedgerUpdate, TransferOrder};

/// How many accounts there are.
const ACCOUNTS: u32 = 40;

type Bank = ShardedObject<Ledger>;

/// Runs a member until its standard input ends. It prints `ready`, then `paid` with each transfer that is carried out; when it reads
/// `stop`, it makes no more transfers and prints `stopped`; when it reads
/// `audit`, it prints what the accounts say, and when it reads `part`, what its replica has.
pub(crate) fn run(config: Config, only_join: bool) -> Result<(), Box<dyn std::error::Error>> {
    let builder = Group::builder(config);
    let mut group = if only_join { builder.only_join() } else { builder }.join()?;
    let bank: Bank = group.sharded_object(Ledger::default)?;
    // The surplus of all shards at one moment: it is answered when this member has the state of its shard.
    check_total(&bank)?;
    println!("ready");
    let stop = Arc::new(AtomicBool::new(false));
    let (theirs, teller) = (Arc::clone(&stop), bank.clone());
    let number = u64::from(group.node().0);
    let tellers = thread::spawn(move || {
        if let Err(error) = tell(&teller, number, &theirs) {
            // This member was taken for dead, or is alone.
            eprintln!("teller {number}: {error}");
            process::exit(3);
        }
    });
    let mut tellers = Some(tellers);
    for line in io::stdin().lock().lines() {
        match line?.as_str() {
            "stop" => {
                stop.store(true, Ordering::Relaxed);
                tellers.take().map(thread::JoinHandle::join);
                println!("stopped");
            }
            "audit" => audit(&bank)?,
            "part" => {
                // The part of this member's shard, in one line.
                let part = bank.inspect(|position, part| format!("{position:?} {part:?}"));
                println!("part {}", part.unwrap_or_default());
            }
            _ => {}
        }
        io::stdout().flush()?;
    }
    drop(group);
    Ok(())
}

fn check_total(bank: &Bank) -> Result<(), ObjectError> {
    let replies = bank.query_all(&LedgerQuery::Surplus)?.wait()?.replies;
    let surplus: i64 =
        replies.iter().map(|reply| if let LedgerReply::Surplus(of) = reply { *of } else { 0 }).sum();
    if surplus != 0 {
        println!("surplus {surplus}: {replies:?}");
    }
    Ok(())
}

/// Prints how often each transfer was carried out, in all shards.
fn audit(bank: &Bank) -> Result<(), ObjectError> {
    for account in 0..ACCOUNTS {
        if let Some(transfer) = read(bank, account)?.locked {
            finish(bank, transfer)?;
        }
    }
    check_total(bank)?;
    for reply in bank.query_all(&LedgerQuery::Done)?.wait()?.replies {
        let LedgerReply::Done(done) = reply else { continue };
        for (transfer, count) in done {
            println!("done {count} {}", text(&transfer));
        }
    }
    println!("audited");
    Ok(())
}

/// Makes transfers until it is to stop.
fn tell(bank: &Bank, teller: u64, stop: &AtomicBool) -> Result<(), ObjectError> {
    let mut random = teller.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut draw = |below: u32| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        u32::try_from(random % u64::from(below)).expect("below")
    };
    for number in 0.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let from = draw(ACCOUNTS);
        let to = (from + 1 + draw(ACCOUNTS - 1)) % ACCOUNTS;
        let transfer = TransferOrder { teller, number, from, to, amount: i64::from(1 + draw(50)) };
        if pay(bank, transfer)? {
            println!("paid {}", text(&transfer));
        }
        if number % 50 == 0 {
            check_total(bank)?;
        }
        thread::sleep(Duration::from_micros(u64::from(draw(500))));
    }
    Ok(())
}

/// Reads both accounts, and changes them if nothing else has changed them meanwhile; returns whether it has.
fn pay(bank: &Bank, transfer: TransferOrder) -> Result<bool, ObjectError> {
    let accounts = [transfer.from, transfer.to];
    let states = [read(bank, transfer.from)?, read(bank, transfer.to)?];
    if let Some(locked) = states.iter().find_map(|state| state.locked) {
        // Its teller may have died.
        finish(bank, locked)?;
        return Ok(false);
    }
    let prepare =
        |i: usize| LedgerUpdate::Prepare { transfer, account: accounts[i], version: states[i].version };
    let replies = update_both(bank, accounts, [prepare(0), prepare(1)])?;
    let is_commit = replies.iter().all(|reply| *reply == LedgerReply::Accepted(true));
    finish_as(bank, transfer, is_commit)?;
    Ok(is_commit)
}

/// Finishes a transfer that another teller has begun: it is to be carried out if both accounts have accepted it, and both are finished at
/// one position, so at each position both are locked by it, or one that has to be unlocked, or none.
fn finish(bank: &Bank, transfer: TransferOrder) -> Result<(), ObjectError> {
    let keys = [key(transfer.from), key(transfer.to)];
    let queries = [LedgerQuery::Account(transfer.from), LedgerQuery::Account(transfer.to)];
    let both = keys.iter().map(|key| &key[..]).zip(&queries);
    let replies = bank.query_many(both)?.wait()?.replies;
    let is_locked =
        |reply: &LedgerReply| matches!(reply, LedgerReply::Account(state) if state.locked == Some(transfer));
    if replies.iter().any(is_locked) {
        finish_as(bank, transfer, replies.iter().all(is_locked))?;
    }
    Ok(())
}

fn finish_as(bank: &Bank, transfer: TransferOrder, is_commit: bool) -> Result<(), ObjectError> {
    let accounts = [transfer.from, transfer.to];
    let finish = accounts.map(|account| LedgerUpdate::Finish { transfer, account, is_commit });
    update_both(bank, accounts, finish).map(drop)
}

fn update_both(
    bank: &Bank,
    accounts: [u32; 2],
    updates: [LedgerUpdate; 2],
) -> Result<Vec<LedgerReply>, ObjectError> {
    let keys = accounts.map(key);
    let both = keys.iter().map(|key| &key[..]).zip(&updates);
    Ok(bank.update_many(both)?.wait()?.replies)
}

fn read(bank: &Bank, account: u32) -> Result<AccountState, ObjectError> {
    let replies = bank.query_many([(&key(account)[..], &LedgerQuery::Account(account))])?.wait()?.replies;
    match replies[..] {
        [LedgerReply::Account(state)] => Ok(state),
        _ => Err(ObjectError::Form(format!("{replies:?}"))),
    }
}

fn key(account: u32) -> [u8; 4] {
    account.to_le_bytes()
}

fn text(TransferOrder { teller, number, from, to, amount }: &TransferOrder) -> String {
    format!("{teller}/{number} {from}->{to} {amount}")
}
