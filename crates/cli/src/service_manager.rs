//! What a service manager gets to know of a process: a datagram of lines for the socket that `NOTIFY_SOCKET` names, as systemd's
//! `sd_notify` sends it. Without that variable, and where no process listens there, nothing is reported. A report never waits: when the
//! manager has not read those before it, it is lost, with a warning.

use std::ffi::{OsStr, OsString};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// The service manager that has started this process, if one has.
#[derive(Debug, Default)]
pub(crate) struct ServiceManager(Option<(UnixDatagram, SocketAddr)>);

impl ServiceManager {
    /// Returns the one that `NOTIFY_SOCKET` names.
    pub(crate) fn of_environment() -> Self {
        std::env::var_os("NOTIFY_SOCKET").map_or_else(Self::default, |name| Self::at(&name))
    }

    fn at(name: &OsStr) -> Self {
        let address = match name.as_bytes().strip_prefix(b"@") {
            Some(name) => SocketAddr::from_abstract_name(name),
            None => SocketAddr::from_pathname(OsString::from(name)),
        };
        let socket = address.and_then(|address| {
            let socket = UnixDatagram::unbound()?;
            socket.set_nonblocking(true)?;
            Ok((socket, address))
        });
        if let Err(error) = &socket {
            tracing::warn!(%error, "the service manager cannot be reached at NOTIFY_SOCKET={}", name.display());
        }
        Self(socket.ok())
    }

    /// Reports that the process does what it is for.
    pub(crate) fn ready(&self, status: &str) {
        self.send(&format!("READY=1\nSTATUS={status}\n"));
    }

    /// Reports what the process does, as a line.
    pub(crate) fn status(&self, status: &str) {
        self.send(&format!("STATUS={status}\n"));
    }

    /// Reports that the process ends in order.
    pub(crate) fn stopping(&self) {
        self.send("STOPPING=1\n");
    }

    fn send(&self, lines: &str) {
        let Some((socket, address)) = &self.0 else { return };
        if let Err(error) = socket.send_to_addr(lines.as_bytes(), address) {
            tracing::warn!(%error, "failed to report to the service manager");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn received(listener: &UnixDatagram, name: &str) -> Vec<String> {
        let manager = ServiceManager::at(OsStr::new(name));
        manager.status("1 of 3 members are here");
        manager.ready("view 0");
        manager.stopping();
        listener.set_read_timeout(Some(std::time::Duration::from_secs(10))).expect("it is not zero");
        let mut bytes = [0; 100];
        let mut one = || {
            let length = listener.recv(&mut bytes).expect("a datagram has come");
            String::from_utf8_lossy(&bytes[..length]).into_owned()
        };
        vec![one(), one(), one()]
    }

    #[test]
    fn datagrams_reach_sockets_with_a_path_and_abstract_ones() {
        let expected = ["STATUS=1 of 3 members are here\n", "READY=1\nSTATUS=view 0\n", "STOPPING=1\n"];
        let name = format!("squall-manager-{}", std::process::id());
        let path = std::env::temp_dir().join(&name);
        let listener = UnixDatagram::bind(&path).expect("the path is free");
        assert_eq!(received(&listener, &path.to_string_lossy()), expected);
        std::fs::remove_file(&path).expect("it is there");
        let address = SocketAddr::from_abstract_name(&name).expect("it is short");
        let listener = UnixDatagram::bind_addr(&address).expect("the name is free");
        assert_eq!(received(&listener, &format!("@{name}")), expected);
    }

    /// Its socket holds a few hundred datagrams at most.
    #[test]
    fn a_manager_that_reads_nothing_holds_up_no_report() {
        let name = format!("squall-manager-deaf-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).expect("it is short");
        let listener = UnixDatagram::bind_addr(&address).expect("the name is free");
        let (done, is_done) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let manager = ServiceManager::at(OsStr::new(&format!("@{name}")));
            (0..1000).for_each(|_| manager.status("1 of 3 members are here"));
            done.send(())
        });
        is_done.recv_timeout(std::time::Duration::from_secs(10)).expect("no report waits");
        drop(listener);
    }

    /// A manager that has gone, or an absurd name, is no reason to end.
    #[test]
    fn without_a_manager_nothing_happens() {
        ServiceManager::default().ready("view 0");
        ServiceManager::at(OsStr::new("/there/is/no/such/socket")).ready("view 0");
        ServiceManager::at(OsStr::new(&"a".repeat(1000))).ready("view 0");
    }
}
