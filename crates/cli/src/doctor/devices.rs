//! Devices and limits of this machine.

use std::fmt;

use rustix::process::{Resource, getrlimit};
use serde::Serialize;
use squall_transports::verbs;

/// One device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct DeviceReport {
    pub(crate) name: String,
    /// It is the one that would be used.
    pub(crate) chosen: bool,
    /// What would be used of it.
    pub(crate) use_of: Option<UseOf>,
    /// Why it cannot be used.
    pub(crate) unsuitable: Option<String>,
}

/// Port and address of a device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct UseOf {
    pub(crate) port: u8,
    pub(crate) network: &'static str,
    pub(crate) address: String,
    pub(crate) gid_index: u8,
    pub(crate) packet_bytes_max: u32,
    pub(crate) software: bool,
}

impl fmt::Display for DeviceReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.name)?;
        match (&self.use_of, &self.unsuitable) {
            (Some(used), _) => {
                let UseOf { port, network, address, gid_index, packet_bytes_max, software } = used;
                let kind = if *software { ", in software" } else { "" };
                write!(
                    f,
                    "port {port}, {network} at {address} (GID index {gid_index}), packets of up to {packet_bytes_max} B{kind}"
                )?;
                f.write_str(if self.chosen { "; would be used" } else { "; could be used" })
            }
            (None, why) => write!(f, "cannot be used: {}", why.as_deref().unwrap_or("unknown")),
        }
    }
}

/// All devices, those that cannot be used with the reason.
pub(crate) fn devices(chosen: Option<&str>) -> Vec<DeviceReport> {
    // Without the library there are none; `verbs::check` reports that.
    let devices = verbs::devices().unwrap_or_default();
    let report = |(name, device): verbs::DeviceSurvey| {
        let chosen = chosen == Some(name.as_str());
        match device {
            Ok(device) => {
                let network = if device.ethernet { "RoCE" } else { "InfiniBand" };
                let use_of = UseOf {
                    port: device.port,
                    network,
                    address: device.address().to_string(),
                    gid_index: device.gid_index,
                    packet_bytes_max: device.packet_bytes_max,
                    software: device.software,
                };
                DeviceReport { name, chosen, use_of: Some(use_of), unsuitable: None }
            }
            Err(why) => DeviceReport { name, chosen, use_of: None, unsuitable: Some(why.to_string()) },
        }
    };
    devices.into_iter().map(report).collect()
}

/// How much memory this process may lock, unless there is no limit.
pub(crate) fn memory_lock_bytes_max() -> Option<u64> {
    getrlimit(Resource::Memlock).current
}

/// What to do about a limit.
pub(crate) fn advice(bytes: u64) -> &'static str {
    if bytes < ENOUGH_BYTES {
        ", which is little for RDMA: run `ulimit -l unlimited`, see docs/verbs.md"
    } else {
        ""
    }
}

/// Windows of a few MiB for each of some tens of peers.
const ENOUGH_BYTES: u64 = 1 << 30;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_reported_with_its_use_or_its_fault() {
        let use_of = UseOf {
            port: 1,
            network: "RoCE",
            address: "10.0.0.1".into(),
            gid_index: 3,
            packet_bytes_max: 4096,
            software: false,
        };
        let good =
            DeviceReport { name: "mlx5_0".into(), chosen: true, use_of: Some(use_of), unsuitable: None };
        let expected =
            "mlx5_0: port 1, RoCE at 10.0.0.1 (GID index 3), packets of up to 4096 B; would be used";
        assert_eq!(good.to_string(), expected);
        let bad = DeviceReport {
            chosen: false,
            use_of: None,
            unsuitable: Some("it is an iWARP device".into()),
            ..good
        };
        assert_eq!(bad.to_string(), "mlx5_0: cannot be used: it is an iWARP device");
    }
}
