//! RDMA devices for tests. Where `SQUALL_TEST_DEVICES` names some, like `rxe0,rxe1,rxe2,rxe3`, tests of transports run
//! over RDMA on these and on nothing else: in the virtual machine of `tools/rdma-vm`, that is, by `.ci/vm`.

#![allow(dead_code, reason = "each test program uses a part of it")]

use squall::config::VerbsSettings;

/// Whether tests are to run over RDMA.
pub(crate) fn is_wanted() -> bool {
    !names().is_empty()
}

/// The device of the node of this number; they are given in turn.
pub(crate) fn settings(node: usize) -> VerbsSettings {
    let mut names = names();
    let device = (!names.is_empty()).then(|| names.swap_remove(node % names.len()));
    VerbsSettings { device, ..VerbsSettings::default() }
}

fn names() -> Vec<String> {
    let names = std::env::var("SQUALL_TEST_DEVICES").unwrap_or_default();
    names.split(',').filter(|name| !name.is_empty()).map(Into::into).collect()
}
