//! The live table: asks the members again and again, and draws until the user ends it.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::time::Duration;

use anyhow::{Context as _, Result};
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use squall_fabric::atomics::{AtomicBool, Ordering};
use squall_harness::terminal::{CommandVerdict, INTERRUPTED_STATUS, Interrupted, Interrupts, output};

use super::draw::{TopScreen, draw};
use super::{GroupActivity, GroupLook};

/// Draws what `look` finds, every `interval`, until the user ends it. The terminal is as it was afterwards, also after a panic.
pub(crate) fn watch(
    title: String,
    interval: Duration,
    look: impl Fn() -> Result<GroupLook> + Send + 'static,
) -> Result<CommandVerdict> {
    let is_over = Arc::new(AtomicBool::new(false));
    let interrupts = Interrupts::take()?;
    let over = Arc::clone(&is_over);
    interrupts.set(move || {
        over.store(true, Ordering::Relaxed);
        std::thread::sleep(END_PATIENCE);
        // The terminal has gone: reading keys neither ends nor fails then.
        drop(ratatui::try_restore());
        output::exit(INTERRUPTED_STATUS.into());
    });
    let (sender, looks) = channel();
    // It may still wait for an answer when the process ends.
    std::thread::Builder::new().name("squall top".into()).spawn(move || {
        while sender.send(look()).is_ok() {
            std::thread::sleep(interval);
        }
    })?;
    // This also has a panic restore the terminal before its message is printed.
    let mut terminal = ratatui::try_init().context("failed to take over the terminal")?;
    let mut screen = TopScreen { title, activity: None, skipped: 0 };
    let ended = run(&mut terminal, &mut screen, &looks, &is_over);
    ratatui::restore();
    ended
}

fn run(
    terminal: &mut ratatui::DefaultTerminal,
    screen: &mut TopScreen,
    looks: &Receiver<Result<GroupLook>>,
    is_over: &AtomicBool,
) -> Result<CommandVerdict> {
    let mut before: Option<GroupLook> = None;
    loop {
        match looks.try_recv() {
            Ok(look) => {
                let look = look?;
                let activity = GroupActivity::between(before.as_ref(), &look);
                screen.activity = Some(look.silence().map_or(Ok(activity), Err));
                before = Some(look);
            }
            Err(TryRecvError::Empty) => {}
            Err(TryRecvError::Disconnected) => anyhow::bail!("the thread that asks the members has ended"),
        }
        terminal.draw(|frame| draw(screen, frame))?;
        if is_over.load(Ordering::Relaxed) {
            return Err(Interrupted::ALONE.into());
        }
        if !event::poll(KEY_PATIENCE)? {
            continue;
        }
        let Event::Key(key) = event::read()? else { continue };
        let is_control_c = key.modifiers.contains(KeyModifiers::CONTROL) && key.code == KeyCode::Char('c');
        match key.code {
            _ if key.kind == KeyEventKind::Release => {}
            KeyCode::Char('q') | KeyCode::Esc => return Ok(CommandVerdict::Good),
            _ if is_control_c => return Ok(CommandVerdict::Good),
            KeyCode::Down => {
                let members = match &screen.activity {
                    Some(Ok(activity)) => activity.members.len(),
                    _ => 0,
                };
                screen.skipped = (screen.skipped + 1).min(members.saturating_sub(1));
            }
            KeyCode::Up => screen.skipped = screen.skipped.saturating_sub(1),
            _ => {}
        }
    }
}

/// How long after a signal the process ends at the latest.
const END_PATIENCE: Duration = Duration::from_secs(1);

/// How soon an answer, or a request to end, is on the screen.
const KEY_PATIENCE: Duration = Duration::from_millis(100);
