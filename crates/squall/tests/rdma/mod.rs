//! RDMA devices for tests. If `SQUALL_TEST_DEVICES` names devices, like `rxe0,rxe1,rxe2,rxe3`, tests of transports
//! run only over RDMA on these devices. `.ci/vm` runs them so in the virtual machine of `tools/rdma-vm`.

#![allow(dead_code, reason = "each test program uses a part of it")]

use squall::config::VerbsSettings;

/// Returns whether tests are to run over RDMA.
pub(crate) fn is_wanted() -> bool {
    !names().is_empty()
}

/// Returns the device of the node of this number; nodes use the devices in turn.
pub(crate) fn settings(node: usize) -> VerbsSettings {
    let mut names = names();
    let device = (!names.is_empty()).then(|| names.swap_remove(node % names.len()));
    VerbsSettings { device, ..VerbsSettings::default() }
}

fn names() -> Vec<String> {
    let names = std::env::var("SQUALL_TEST_DEVICES").unwrap_or_default();
    names.split(',').filter(|name| !name.is_empty()).map(Into::into).collect()
}
