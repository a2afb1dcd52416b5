//! `squall serve`: receives what `squall cp` sends.

use std::net::TcpListener;
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use clap::Args;

use crate::Verdict;
use crate::copy::folder::Folder;
use crate::copy::{Line, PORT, device, read_secret, receive};
use crate::output;

/// Receive files that `squall cp` sends, into a folder
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// Where to listen
    #[arg(long, value_name = "ADDRESS", default_value = "0.0.0.0")]
    listen: String,
    /// The port to listen at
    #[arg(long, default_value_t = PORT)]
    port: u16,
    /// The folder into which files go; nothing outside it is touched
    #[arg(long, default_value = ".")]
    folder: PathBuf,
    /// The file that holds the secret, the same at all hosts, at least 16 bytes
    #[arg(long, value_name = "FILE")]
    secret_file: PathBuf,
    /// The RDMA device for copies that come by RDMA [default: one that fits]
    #[arg(long, value_name = "NAME")]
    device: Option<String>,
    /// End after the first copy
    #[arg(long)]
    once: bool,
}

const EXAMPLES: &str = "One copy at a time is received; others wait. A file that was not finished stays as .NAME.squall-partial, and the \
next copy goes on from there. Permission bits travel as far as the umask here allows; set-user-ID and such bits do not. Files travel unencrypted.

Examples:
  squall serve --folder /srv/images --secret-file /etc/squall.secret
  squall serve --listen 192.0.2.7 --folder . --secret-file secret --once";

pub(crate) fn run(arguments: &Arguments) -> Result<Verdict> {
    let secret = read_secret(&arguments.secret_file)?;
    let verbs = device(arguments.device.as_deref());
    let folder = Folder::open(&arguments.folder)?;
    let address = (arguments.listen.as_str(), arguments.port);
    let listener = TcpListener::bind(address)
        .with_context(|| format!("cannot listen at {} port {}", arguments.listen, arguments.port))?;
    output::note(format_args!("serving {} at {}", arguments.folder.display(), listener.local_addr()?));
    loop {
        let (stream, peer) = match listener.accept() {
            Ok(accepted) => accepted,
            Err(error) => {
                // Who came may be gone already, and file descriptors may be short for a while.
                output::note(format_args!("a connection could not be taken: {error}"));
                std::thread::sleep(ACCEPT_PAUSE);
                continue;
            }
        };
        let outcome = Line::demand(stream, &secret)
            .and_then(|mut line| receive::serve(&mut line, &folder, &secret, &verbs));
        let verdict = match outcome {
            Ok(files) => {
                output::note(format_args!("{peer}: {files} files received"));
                Verdict::Good
            }
            Err(error) => {
                output::note(format_args!("{peer}: {error:#}"));
                Verdict::Bad
            }
        };
        if arguments.once {
            return Ok(verdict);
        }
    }
}

/// Until the next attempt, if a connection could not be taken.
const ACCEPT_PAUSE: std::time::Duration = std::time::Duration::from_millis(100);
