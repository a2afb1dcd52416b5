//! Time limits of tests, which an emulator or a very busy machine may need longer.

use std::time::Duration;

/// Returns `limit`, multiplied by the number in `SQUALL_TEST_PATIENCE` if that is set.
pub(crate) fn patient(limit: Duration) -> Duration {
    let factor = std::env::var("SQUALL_TEST_PATIENCE");
    limit * factor.map_or(1, |factor| factor.parse().expect("SQUALL_TEST_PATIENCE is a whole number"))
}
