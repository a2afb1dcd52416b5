//! `squall serve`: receives what `squall cp` sends.

use std::net::TcpListener;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use anyhow::{Context as _, Result};
use clap::Args;
use serde_json::json;
use squall_harness::EncryptionName;
use squall_harness::terminal::{CommandVerdict, error_text, output, units};

use crate::copy::connection::silence;
use crate::copy::folder::Folder;
use crate::copy::host::CopyHost;
use crate::copy::{CopyTrust, PORT, device};

/// Receive files that `squall cp` sends, into a folder
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ServeArguments {
    /// The address to listen at, without the port or with it
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
    /// What is encrypted; the wish of the end that wants more counts. Digests are, always
    #[arg(long, value_enum, default_value = "on")]
    encryption: EncryptionName,
    /// The RDMA device for copies that come by RDMA [default: one that fits]
    #[arg(long, value_name = "NAME")]
    device: Option<String>,
    /// How long a source may be silent before its copy ends and the next one has its turn, at least 3s
    #[arg(long, value_name = "TIME", value_parser = silence, default_value = "10s")]
    timeout: Duration,
    /// End after the first copy
    #[arg(long)]
    once: bool,
    /// Print each copy that has ended as JSON: its source, the files received, and the error if there was one
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "One copy at a time is received; others wait in the order in which they came, and their users see for \
which. A source that is silent for longer than --timeout loses its turn. A file that was not finished stays as \
.NAME.squall-partial, and the next copy continues from there. Permission bits are kept as far as the umask here allows; set-user-ID and such bits are not. Symbolic links in the folder are never followed, and \
none is made. TCP between hosts is encrypted, unless both ends have --encryption off; --transport verbs is not. With --once the exit status is 1 if that copy failed.

Examples:
  squall serve --folder /srv/images --secret-file /etc/squall.secret
  squall serve --listen 192.0.2.7 --folder . --secret-file secret --once";

pub(crate) fn run(arguments: &ServeArguments) -> Result<CommandVerdict> {
    let trust = CopyTrust::read(&arguments.secret_file, arguments.encryption.into())?;
    let folder = Folder::open(&arguments.folder)?;
    let (host, port) = host_and_port(&arguments.listen, arguments.port);
    let listener =
        TcpListener::bind((host, port)).with_context(|| format!("cannot listen at {host} port {port}"))?;
    squall_transports::pacing::unpace(&listener);
    tracing::info!("serving {} at {}", arguments.folder.display(), listener.local_addr()?);
    let verbs = device(arguments.device.as_deref());
    let entrance = Arc::new(CopyHost::new(trust, verbs, folder, arguments.timeout)?);
    let (sender, ended) = channel();
    std::thread::Builder::new().name("entrance".into()).spawn(move || entrance.run(&listener, &sender))?;
    let mut verdict = CommandVerdict::Good;
    for (peer, outcome) in ended {
        let (files, error) = match outcome {
            Ok(files) => {
                tracing::info!("{peer}: received {}", units::things(files as u64, "file"));
                (Some(files), None)
            }
            Err(error) => {
                tracing::error!("{peer}: {}", error_text(&error));
                (None, Some(error_text(&error)))
            }
        };
        verdict = if error.is_none() { CommandVerdict::Good } else { CommandVerdict::Bad };
        if arguments.json {
            output::json(&json!({ "source": peer, "files": files, "error": error }))?;
        }
        if arguments.once {
            break;
        }
    }
    Ok(verdict)
}

/// Divides `192.0.2.7`, `192.0.2.7:7401`, `2001:db8::7` and `[2001:db8::7]:7401`; without a port it is `port`.
fn host_and_port(address: &str, port: u16) -> (&str, u16) {
    let bare = |host: &str| host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).is_some();
    match address.rsplit_once(':').map(|(host, port)| (host, port.parse())) {
        Some((host, Ok(port))) if bare(host) || !host.contains(':') => (host.trim_matches(['[', ']']), port),
        _ => (address.trim_matches(['[', ']']), port),
    }
}

#[cfg(test)]
mod tests {
    use super::host_and_port;

    #[test]
    fn an_address_may_have_a_port() {
        for (address, host, port) in [
            ("0.0.0.0", "0.0.0.0", 7401),
            ("192.0.2.7:80", "192.0.2.7", 80),
            ("name:80", "name", 80),
            ("2001:db8::7", "2001:db8::7", 7401),
            ("[2001:db8::7]", "2001:db8::7", 7401),
            ("[2001:db8::7]:80", "2001:db8::7", 80),
            ("name:http", "name:http", 7401),
        ] {
            assert_eq!(host_and_port(address, 7401), (host, port), "{address}");
        }
    }
}
