//! `squall serve`: receives what `squall cp` sends.

use std::net::TcpListener;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::channel;

use anyhow::{Context as _, Result};
use clap::Args;
use squall_harness::terminal::{CommandVerdict, output};

use crate::copy::folder::Folder;
use crate::copy::host::CopyHost;
use crate::copy::{PORT, device, read_secret};

/// Receive files that `squall cp` sends, into a folder
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ServeArguments {
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

const EXAMPLES: &str = "One copy at a time is received; others wait in the order in which they came, and hear for which. A file that was not finished stays as .NAME.squall-partial, and the \
next copy goes on from there. Permission bits travel as far as the umask here allows; set-user-ID and such bits do not. What travels between hosts is encrypted (but not by --transport verbs).

Examples:
  squall serve --folder /srv/images --secret-file /etc/squall.secret
  squall serve --listen 192.0.2.7 --folder . --secret-file secret --once";

pub(crate) fn run(arguments: &ServeArguments) -> Result<CommandVerdict> {
    let secret = read_secret(&arguments.secret_file)?;
    let folder = Folder::open(&arguments.folder)?;
    let address = (arguments.listen.as_str(), arguments.port);
    let listener = TcpListener::bind(address)
        .with_context(|| format!("cannot listen at {} port {}", arguments.listen, arguments.port))?;
    output::note(format_args!("serving {} at {}", arguments.folder.display(), listener.local_addr()?));
    let entrance = Arc::new(CopyHost::new(secret, device(arguments.device.as_deref()), folder)?);
    let (sender, ended) = channel();
    std::thread::Builder::new().name("entrance".into()).spawn(move || entrance.run(&listener, &sender))?;
    let mut verdict = CommandVerdict::Good;
    for (peer, outcome) in ended {
        verdict = match outcome {
            Ok(files) => {
                output::note(format_args!("{peer}: {files} files received"));
                CommandVerdict::Good
            }
            Err(error) => {
                output::note(format_args!("{peer}: {error:#}"));
                CommandVerdict::Bad
            }
        };
        if arguments.once {
            break;
        }
    }
    Ok(verdict)
}
