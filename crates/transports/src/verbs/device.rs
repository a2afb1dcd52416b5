//! The device: which one a node uses, and through which port and address (RoCE: a GID).

use std::ffi::CStr;
use std::io;
use std::net::IpAddr;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::Arc;

use rustix::fd::BorrowedFd;

use super::ffi::{self, Library};
use super::{Unsuitable, VerbsError, VerbsSettings};

/// An opened device.
pub(super) struct VerbsDevice {
    library: Arc<Library>,
    context: NonNull<ffi::ibv_context>,
    name: String,
    port: DevicePort,
    /// The most entries of one completion queue.
    pub(super) completions_max: usize,
}

/// The port that a node uses.
#[derive(Clone, Copy, Debug)]
pub(super) struct DevicePort {
    pub(super) number: u8,
    /// The index of `address.gid` in the port's table.
    pub(super) gid_index: u8,
    pub(super) address: PortAddress,
    /// The most bytes of one write or send.
    pub(super) message_bytes_max: usize,
}

/// What peers need to know to reach a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PortAddress {
    /// Local identifier on InfiniBand; 0 on Ethernet.
    pub(super) lid: u16,
    /// The longest packet, as verbs number them: 1 is 256 bytes, 5 is 4096.
    pub(super) mtu: u8,
    pub(super) ethernet: bool,
    pub(super) gid: [u8; 16],
}

/// A device's name, and how it would be used or why it cannot be.
pub type DeviceSurvey = (String, Result<DeviceSummary, Unsuitable>);

/// A description of a device for people, with the port and the address that are used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceSummary {
    /// Its name.
    pub name: String,
    /// The port, from 1.
    pub port: u8,
    /// The index of the address in the port's table.
    pub gid_index: u8,
    /// The address: 16 bytes; on RoCE that of the network interface.
    pub gid: [u8; 16],
    /// RoCE; otherwise InfiniBand.
    pub ethernet: bool,
    /// Bytes of the longest packet.
    pub packet_bytes_max: u32,
    /// Whether the device is implemented in software.
    pub software: bool,
}

impl DeviceSummary {
    /// Returns whether `address` is the device's.
    #[must_use]
    pub fn has(&self, address: IpAddr) -> bool {
        is_address(&self.gid, address)
    }

    /// Returns the first half of the address, which devices of one InfiniBand subnet share.
    #[must_use]
    pub fn subnet(&self) -> [u8; 8] {
        self.gid[..8].try_into().expect("half of 16 bytes")
    }

    /// Returns the address as that of an interface, which it is on RoCE.
    #[must_use]
    pub fn address(&self) -> IpAddr {
        IpAddr::from(self.gid).to_canonical()
    }
}

/// An address that a port could use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Candidate {
    index: u8,
    gid: [u8; 16],
    kind: u32,
}

// SAFETY: verbs may be called from any thread.
unsafe impl Send for VerbsDevice {}
// SAFETY: as above.
unsafe impl Sync for VerbsDevice {}

impl VerbsDevice {
    /// Opens the device that the settings name; if they name none, the one that has one of `addresses` (those
    /// of the streams to the peers), or else the first that can be used.
    pub(super) fn choose(
        library: &Arc<Library>,
        settings: &VerbsSettings,
        addresses: &[IpAddr],
    ) -> Result<Arc<Self>, VerbsError> {
        let list = DeviceList::new(library)?;
        let mut refusals = Vec::new();
        let mut best: Option<(usize, Self)> = None;
        for (device, name) in list.devices() {
            if settings.device.as_ref().is_some_and(|wanted| *wanted != name) {
                continue;
            }
            match Self::open(library, device, &name, settings, addresses) {
                Ok((rank, device)) if best.as_ref().is_none_or(|(found, _)| rank > *found) => {
                    best = Some((rank, device));
                }
                Ok(_) => {}
                Err(reason) => refusals.push((name, reason)),
            }
        }
        let wanted = settings.device.clone();
        best.map(|(_, device)| Arc::new(device)).ok_or(VerbsError::NoDevice { wanted, refusals })
    }

    /// Returns all devices, each with how it would be used.
    pub(super) fn all(library: &Arc<Library>) -> Result<Vec<DeviceSurvey>, VerbsError> {
        let list = DeviceList::new(library)?;
        let any = VerbsSettings::default();
        let look = |(device, name): (NonNull<ffi::ibv_device>, String)| {
            let opened = Self::open(library, device, &name, &any, &[]);
            (name, opened.map(|(_, opened)| opened.summary()))
        };
        Ok(list.devices().map(look).collect())
    }

    /// Opens a device; also returns how well it fits.
    fn open(
        library: &Arc<Library>,
        device: NonNull<ffi::ibv_device>,
        name: &str,
        settings: &VerbsSettings,
        addresses: &[IpAddr],
    ) -> Result<(usize, Self), Unsuitable> {
        if !cfg!(target_arch = "x86_64") {
            return Err(Unsuitable::Processor);
        }
        // SAFETY: the list holds the device; these fields never change.
        let kind = unsafe { device.as_ref() };
        match (kind.transport_type, kind.node_type) {
            (ffi::IBV_TRANSPORT_IB, ffi::IBV_NODE_CA) => {}
            (ffi::IBV_TRANSPORT_IWARP, _) => return Err(Unsuitable::Iwarp),
            _ => return Err(Unsuitable::Unordered),
        }
        // SAFETY: the list holds the device.
        let context = NonNull::new(unsafe { library.ibv_open_device(device.as_ptr()) });
        let context = context.ok_or_else(|| Unsuitable::Closed(io::Error::last_os_error().to_string()))?;
        let port = DevicePort { number: 0, gid_index: 0, address: NO_ADDRESS, message_bytes_max: 0 };
        let mut opened =
            Self { library: library.clone(), context, name: name.to_owned(), port, completions_max: 0 };
        let attributes = opened.attributes().map_err(|error| Unsuitable::Closed(error.to_string()))?;
        opened.completions_max = usize::try_from(attributes.max_cqe).unwrap_or(0);
        let ports =
            (1..=attributes.phys_port_cnt).filter(|n| settings.port.is_none_or(|wanted| wanted == *n));
        let mut reason = Unsuitable::PortDown;
        let mut best = None;
        for number in ports {
            match opened.port(number, settings, addresses) {
                Ok(found) if best.is_none_or(|(rank, _)| found.0 > rank) => best = Some(found),
                Ok(_) => {}
                Err(why) => reason = why,
            }
        }
        let (rank, port) = best.ok_or(reason)?;
        opened.port = port;
        Ok((rank, opened))
    }

    fn attributes(&self) -> io::Result<ffi::ibv_device_attr> {
        // SAFETY: a structure of integers, for which zeros are valid.
        let mut attributes = unsafe { std::mem::zeroed() };
        // SAFETY: the context is open, and the structure is of the type that the call fills.
        status(unsafe { self.library.ibv_query_device(self.context.as_ptr(), &raw mut attributes) })?;
        Ok(attributes)
    }

    /// Returns port `number`, if it can be used, and how well it fits.
    fn port(
        &self,
        number: u8,
        settings: &VerbsSettings,
        addresses: &[IpAddr],
    ) -> Result<(usize, DevicePort), Unsuitable> {
        // SAFETY: a structure of integers, for which zeros are valid.
        let mut attributes: ffi::ibv_port_attr = unsafe { std::mem::zeroed() };
        let compatible = (&raw mut attributes).cast();
        // SAFETY: the context is open. The call fills the structure as it was in older versions, with which
        // the current one begins; the rest remains zero.
        status(unsafe { self.library.ibv_query_port(self.context.as_ptr(), number, compatible) })
            .map_err(|error| Unsuitable::Closed(error.to_string()))?;
        if attributes.state != ffi::IBV_PORT_ACTIVE {
            return Err(Unsuitable::PortDown);
        }
        let ethernet = u32::from(attributes.link_layer) == ffi::IBV_LINK_LAYER_ETHERNET;
        let entries = (0..u32::try_from(attributes.gid_tbl_len).unwrap_or(0))
            .filter_map(|index| self.gid(number, index))
            .filter(|entry| settings.gid_index.is_none_or(|wanted| wanted == entry.index));
        let ranked = entries.map(|entry| (rank(&entry, ethernet, addresses), entry));
        // The first of the best.
        let best = ranked.reduce(|best, next| if next.0 > best.0 { next } else { best });
        let (rank, Candidate { index: gid_index, gid, .. }) = best.ok_or(Unsuitable::NoAddress)?;
        let mtu = u8::try_from(attributes.active_mtu).unwrap_or(1);
        let address = PortAddress { lid: attributes.lid, mtu, ethernet, gid };
        let message_bytes_max = (attributes.max_msg_sz as usize).clamp(4096, 1 << 30) & !7;
        Ok((rank, DevicePort { number, gid_index, address, message_bytes_max }))
    }

    /// Returns entry `index` of a port's table of addresses, if it is in use.
    fn gid(&self, port: u8, index: u32) -> Option<Candidate> {
        // SAFETY: a structure of integers, for which zeros are valid.
        let mut entry: ffi::ibv_gid_entry = unsafe { std::mem::zeroed() };
        let (context, bytes) = (self.context.as_ptr(), size_of::<ffi::ibv_gid_entry>());
        // SAFETY: the context is open, and the structure has the size that is passed.
        let code = unsafe {
            self.library._ibv_query_gid_ex(context, u32::from(port), index, &raw mut entry, 0, bytes)
        };
        status(code).ok()?;
        // SAFETY: the call has filled it; all bytes are valid for this member.
        let gid = unsafe { entry.gid.raw };
        let index = u8::try_from(index).ok()?;
        (gid != [0; 16]).then_some(Candidate { index, gid, kind: entry.gid_type })
    }

    pub(super) fn library(&self) -> &Library {
        &self.library
    }

    pub(super) fn context(&self) -> NonNull<ffi::ibv_context> {
        self.context
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Returns whether the device is implemented in software.
    pub(super) fn is_software(&self) -> bool {
        let folder = Path::new(DEVICES).join(&self.name);
        folder.exists() && !folder.join("device").exists()
    }

    pub(super) fn summary(&self) -> DeviceSummary {
        let DevicePort { number, gid_index, address, .. } = self.port;
        DeviceSummary {
            name: self.name.clone(),
            port: number,
            gid_index,
            gid: address.gid,
            ethernet: address.ethernet,
            packet_bytes_max: 128 << address.mtu,
            software: self.is_software(),
        }
    }

    pub(super) fn port_used(&self) -> &DevicePort {
        &self.port
    }

    /// Returns a descriptor that is readable when the device reports an event that concerns no single post.
    pub(super) fn notices(&self) -> BorrowedFd<'_> {
        // SAFETY: the context is open as long as `self` lives.
        let fd = unsafe { self.context.as_ref() }.async_fd;
        // SAFETY: as above, and so is its file descriptor.
        unsafe { BorrowedFd::borrow_raw(fd) }
    }

    /// Takes the next event, once [`VerbsDevice::notices`] does not block: its kind, and whether the device
    /// has failed.
    pub(super) fn take_notice(&self) -> Option<(String, bool)> {
        // SAFETY: a structure of integers and pointers, for which zeros are valid.
        let mut event: ffi::ibv_async_event = unsafe { std::mem::zeroed() };
        // SAFETY: the context is open, and the structure is of the type that the call fills.
        status(unsafe { self.library.ibv_get_async_event(self.context.as_ptr(), &raw mut event) }).ok()?;
        let kind = event.event_type;
        // SAFETY: the call returns a static string for every number.
        let text = unsafe { self.library.ibv_event_type_str(kind) };
        // SAFETY: it ends with a zero byte.
        let text = unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned();
        // SAFETY: acknowledged once, right after it was taken, so that no object waits for it.
        unsafe { self.library.ibv_ack_async_event(&raw mut event) };
        Some((text, kind == ffi::IBV_EVENT_DEVICE_FATAL))
    }
}

impl Drop for VerbsDevice {
    fn drop(&mut self) {
        // SAFETY: everything that was created in this context holds the device, so it is gone.
        unsafe { self.library.ibv_close_device(self.context.as_ptr()) };
    }
}

/// The devices of this machine.
struct DeviceList<'a> {
    library: &'a Library,
    list: NonNull<*mut ffi::ibv_device>,
    length: usize,
}

impl<'a> DeviceList<'a> {
    fn new(library: &'a Library) -> Result<Self, VerbsError> {
        let mut length = 0;
        // SAFETY: the call stores the length.
        let list = NonNull::new(unsafe { library.ibv_get_device_list(&raw mut length) });
        // A kernel without RDMA has no list.
        let list = list.ok_or(VerbsError::NoDevice { wanted: None, refusals: Vec::new() })?;
        Ok(Self { library, list, length: usize::try_from(length).unwrap_or(0) })
    }

    fn devices(&self) -> impl Iterator<Item = (NonNull<ffi::ibv_device>, String)> {
        (0..self.length).filter_map(|i| {
            // SAFETY: inside the list.
            let entry = unsafe { self.list.add(i) };
            // SAFETY: the list has been filled.
            let device = NonNull::new(unsafe { entry.read() })?;
            // SAFETY: the list holds the device.
            let name = unsafe { self.library.ibv_get_device_name(device.as_ptr()) };
            // SAFETY: a device's name ends with a zero byte.
            let name = unsafe { CStr::from_ptr(name) };
            Some((device, name.to_string_lossy().into_owned()))
        })
    }
}

impl Drop for DeviceList<'_> {
    fn drop(&mut self) {
        // SAFETY: created by `ibv_get_device_list`; devices that were opened remain open.
        unsafe { self.library.ibv_free_device_list(self.list.as_ptr()) };
    }
}

/// Returns how well an address fits: one of the streams' addresses first; then, on Ethernet, those that can
/// be routed (RoCE version 2), and of these IPv4.
fn rank(entry: &Candidate, ethernet: bool, addresses: &[IpAddr]) -> usize {
    let known = addresses.iter().any(|address| is_address(&entry.gid, *address));
    let routable = ethernet && entry.kind == ffi::IBV_GID_TYPE_ROCE_V2;
    let ipv4 = ethernet && entry.gid[..12] == [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];
    usize::from(known) << 2 | usize::from(routable) << 1 | usize::from(ipv4)
}

fn is_address(gid: &[u8; 16], address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets() == *gid,
        IpAddr::V6(v6) => v6.octets() == *gid,
    }
}

/// Converts the result of a call that returns an error number, or -1 with the number in `errno`.
pub(super) fn status(code: i32) -> io::Result<()> {
    match code {
        0 => Ok(()),
        -1 => Err(io::Error::last_os_error()),
        code => Err(io::Error::from_raw_os_error(code)),
    }
}

/// Each device has a folder here; those on a bus have a link to their place there.
const DEVICES: &str = "/sys/class/infiniband";

const NO_ADDRESS: PortAddress = PortAddress { lid: 0, mtu: 1, ethernet: false, gid: [0; 16] };

#[cfg(test)]
mod tests {
    use super::*;

    fn candidate(address: &str, kind: u32) -> Candidate {
        let gid = match address.parse().expect("an address") {
            IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
            IpAddr::V6(v6) => v6.octets(),
        };
        Candidate { index: 0, gid, kind }
    }

    #[test]
    fn the_address_of_the_streams_comes_first_then_routable_ipv4() {
        let ours = ["192.168.7.1".parse().expect("an address")];
        let [v1, v2] = [ffi::IBV_GID_TYPE_ROCE_V1, ffi::IBV_GID_TYPE_ROCE_V2];
        let order = [
            candidate("fe80::1", v1),
            candidate("10.0.0.1", v1),
            candidate("fe80::1", v2),
            candidate("10.0.0.1", v2),
            candidate("192.168.7.1", v1),
            candidate("192.168.7.1", v2),
        ];
        let ranks: Vec<_> = order.iter().map(|entry| rank(entry, true, &ours)).collect();
        assert!(ranks.is_sorted_by(|a, b| a < b), "{ranks:?}");
    }

    #[test]
    fn both_conventions_for_errors_are_handled() {
        assert!(status(0).is_ok());
        assert_eq!(status(22).expect_err("EINVAL").raw_os_error(), Some(22));
    }
}
