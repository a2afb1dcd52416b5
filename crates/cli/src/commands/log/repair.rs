//! `squall log repair`: what can be repaired from the log alone.

use std::path::PathBuf;

use anyhow::{Context as _, Result};
use clap::Args;
use serde_json::json;
use squall_harness::terminal::{CommandVerdict, output, units};
use squall_log::{
    AsideReason, FileDisk, LogSettings, RepairPlan, RepairStep, TailVerdict, plan_repair, repair,
};

use super::check_folder;

/// Repair the log of a member from what is in its folder
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct RepairArguments {
    /// The folder of the member
    #[arg(long, value_name = "FOLDER")]
    storage: PathBuf,
    /// Do it; without this nothing is changed
    #[arg(long)]
    yes: bool,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "Repaired are: a bad copy of the identity or of the register, if the other one is good; frames in which one bit \
has flipped; files that count for nothing, such as unfinished ones. Nothing is deleted: what goes, and what is changed, is kept in the \
folder `aside` in FOLDER. What only other members know is not repaired here: a member whose log is damaged gets what it lacks from them \
when it starts.

The exit status is 1 if the log is still damaged, or both copies of the register are bad. End the member first.

Examples:
  squall log repair --storage /var/lib/squall/rank-0
  squall log repair --storage /var/lib/squall/rank-0 --yes";

pub(super) fn run(arguments: &RepairArguments) -> Result<CommandVerdict> {
    let RepairArguments { storage: folder, yes, json } = arguments;
    check_folder(folder)?;
    let failed = || format!("failed to repair the log in {}", folder.display());
    let plan = if *yes {
        let disk = FileDisk::open(folder).with_context(failed)?;
        disk.make_folder("aside").with_context(failed)?;
        repair(&disk, LogSettings::DEFAULT).with_context(failed)?
    } else {
        plan_repair(&FileDisk::inspect(folder), LogSettings::DEFAULT).with_context(failed)?
    };
    if *json {
        output::json(&summary(&plan, *yes))?;
    } else {
        print(&plan, *yes);
    }
    let is_good = plan.has_register && plan.after.verdict != TailVerdict::Damaged;
    Ok(if is_good { CommandVerdict::Good } else { CommandVerdict::Bad })
}

fn summary(plan: &RepairPlan, is_done: bool) -> serde_json::Value {
    let step = |step: &RepairStep| match step {
        RepairStep::Aside { path, reason } => json!({ "aside": path, "why": words(*reason) }),
        RepairStep::Copies { path } => json!({ "copies": path }),
        RepairStep::Bit { frame, segment, offset, mask } => {
            json!({ "frame": frame, "segment": segment, "offset": offset, "mask": mask })
        }
    };
    let steps: Vec<_> = plan.steps.iter().map(step).collect();
    let log = |log: &squall_log::Recovered| json!({ "verdict": log.verdict.to_string(), "frames": log.frames, "records": log.records });
    json!({
        "steps": steps,
        "done": is_done,
        "before": log(&plan.before),
        "after": log(&plan.after),
        "register": plan.has_register,
    })
}

const fn words(reason: AsideReason) -> &'static str {
    match reason {
        AsideReason::Unfinished => "it was not finished",
        AsideReason::BadCheckpoint => "the checkpoint is not as it was written",
        AsideReason::SpareLength => "the spare segment has the wrong length",
    }
}

fn print(plan: &RepairPlan, is_done: bool) {
    for step in &plan.steps {
        match (step, is_done) {
            (RepairStep::Aside { path, reason }, false) => {
                output::line(format_args!("would move {path} to aside/: {}", words(*reason)));
            }
            (RepairStep::Aside { path, reason }, true) => {
                output::line(format_args!("{path} is in aside/ now: {}", words(*reason)));
            }
            (RepairStep::Copies { path }, false) => {
                output::line(format_args!("would write {path} again, one copy of which is bad"));
            }
            (RepairStep::Copies { path }, true) => {
                output::line(format_args!("{path} is written again; as it was, it is in aside/"));
            }
            (RepairStep::Bit { frame, segment, offset, .. }, _) => {
                let does = if is_done { "has been" } else { "would be" };
                output::line(format_args!(
                    "frame {frame:#x}: a bit of byte {offset} in segment {segment} has flipped, and {does} turned back"
                ));
            }
        }
    }
    if plan.steps.is_empty() {
        output::line("nothing in this folder can be repaired from it alone");
    } else if !is_done {
        output::line("nothing was changed: end the member, and use --yes");
    }
    let (before, after) = (&plan.before, &plan.after);
    let gained = after.records - before.records;
    if gained > 0 {
        let is = if is_done { "is" } else { "would be" };
        output::line(format_args!(
            "the log {is} {}, with {} more",
            after.verdict,
            units::things(gained, "record")
        ));
    } else {
        output::line(format_args!("the log is {}", after.verdict));
    }
    if after.verdict == TailVerdict::Damaged {
        output::line(
            "what is missing at its end is not in this folder: the member gets it from the others when it starts; if no others are left, \
             see `squall recover`",
        );
    }
    if !plan.has_register {
        output::line(
            "both copies of the register are bad, so that this member does not know what it has promised: restore nothing, move the \
             folder away, and let the member join with an empty one; if no others are left, use a copy that `squall log backup` has made",
        );
    }
}
