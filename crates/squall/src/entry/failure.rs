//! How a call to another process failed, as the cores of joins and of the first meeting see it (Derecho §3.3).

use squall_protocols::admission::CallFailure;
use squall_transports::bootstrap::{BootstrapError, CallError};

pub(crate) fn failure_of(error: CallError) -> CallFailure<BootstrapError> {
    match error {
        CallError::Unheard(cause) => CallFailure::Unheard(cause),
        CallError::Again(cause) => CallFailure::Again(cause),
        CallError::Unproved(error) => CallFailure::Unproved(error),
        CallError::Never(error) => CallFailure::Never(error),
    }
}
