//! `squall log backup`: a copy of the log of a member, also while it runs.

use std::path::PathBuf;

use anyhow::{Context as _, Result};
use clap::Args;
use indicatif::ProgressBar;
use serde_json::json;
use squall_harness::terminal::{CommandVerdict, bars, output, units};
use squall_log::{FileDisk, LogSettings, back_up};

use super::check_folder;

/// Copy the log of a member, also while it runs
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct BackupArguments {
    /// The folder of the member
    #[arg(long, value_name = "FOLDER")]
    storage: PathBuf,
    /// The folder for the copy, which must be empty or absent
    target: PathBuf,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "The copy has everything that was on the member's disk when the command began, and is read back and checked at the \
end. The member is not delayed, but for its disk. A damaged log is not copied.

The copy is for the case that the folders of a majority are lost. Put it in the place of one member's folder, and continue from it with \
`squall recover --accept-loss`; what was delivered after it is lost. A member does not start with a copy: it would have forgotten \
what it has promised since.

Examples:
  squall log backup --storage /var/lib/squall/rank-0 /mnt/backup/monday
  squall log backup --storage /var/lib/squall/rank-0 /mnt/backup/monday --json
  squall log verify --storage /mnt/backup/monday";

pub(super) fn run(arguments: &BackupArguments) -> Result<CommandVerdict> {
    let BackupArguments { storage: folder, target, json } = arguments;
    check_folder(folder)?;
    let source = FileDisk::inspect(folder);
    let copy = FileDisk::open(target)
        .with_context(|| format!("failed to make the folder for the copy, {}", target.display()))?;
    let style = bars::rate_style("{bar:40} {bytes} of {total_bytes} ({bytes_rate})");
    let bar = bars::show(ProgressBar::new(0).with_style(style));
    let mut show = |done, all| {
        bar.set_length(all);
        bar.set_position(done);
    };
    let outcome = back_up(&source, &copy, LogSettings::DEFAULT, &mut show);
    bar.finish_and_clear();
    let copied = outcome
        .with_context(|| format!("failed to copy the log in {} to {}", folder.display(), target.display()))?;
    if *json {
        output::json(&json!({
            "target": target,
            "last_frame": copied.last_frame,
            "frames": copied.frames,
            "records": copied.records,
            "segments": copied.segments,
            "checkpoints": copied.checkpoints,
            "bytes": copied.bytes,
        }))?;
    } else {
        output::line(format_args!(
            "{} in {}, up to frame {:#x}, are in {} now, which was read back: it is as it was written",
            units::things(copied.records, "record"),
            units::things(copied.frames, "frame"),
            copied.last_frame,
            target.display()
        ));
    }
    Ok(CommandVerdict::Good)
}
