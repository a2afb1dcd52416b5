//! The C interface of libibverbs, as far as this crate uses it, and its loading at run time.
//!
//! Nothing links against the library, so one binary runs on machines with and without it. Only the classic
//! calls are used (`post_send`, `poll_cq` through the context's table): the extended ones have faults in the
//! rxe of rdma-core 44.

#[allow(
    clippy::all,
    clippy::undocumented_unsafe_blocks,
    clippy::multiple_unsafe_ops_per_block,
    dead_code,
    missing_docs,
    non_camel_case_types,
    non_snake_case,
    non_upper_case_globals,
    unreachable_pub,
    unsafe_op_in_unsafe_fn,
    unnecessary_transmutes
)]
#[rustfmt::skip]
mod bindings;

use std::sync::Arc;

pub(super) use bindings::*;

use super::VerbsError;

/// The loaded library. Its calls may be made from any thread.
pub(super) struct Library {
    verbs: Verbs,
}

impl Library {
    /// Loads the library of this machine, unless this build has no RDMA: a static program cannot load libraries.
    pub(super) fn load() -> Result<Arc<Self>, VerbsError> {
        if cfg!(all(feature = "verbs", not(target_feature = "crt-static"))) {
            Self::load_from(LIBRARY)
        } else {
            Err(VerbsError::LeftOut)
        }
    }

    fn load_from(name: &str) -> Result<Arc<Self>, VerbsError> {
        // SAFETY: the initialisers of libibverbs have no requirements, and the functions have the types that its
        // header declares; their interface has been stable since version 1.1.
        match unsafe { Verbs::new(name) } {
            Ok(verbs) => Ok(Arc::new(Self { verbs })),
            Err(error @ libloading::Error::DlSym { .. }) => {
                Err(VerbsError::LibraryTooOld { detail: cause(&error) })
            }
            Err(error) => Err(VerbsError::LibraryMissing { detail: cause(&error) }),
        }
    }
}

impl std::ops::Deref for Library {
    type Target = Verbs;

    fn deref(&self) -> &Verbs {
        &self.verbs
    }
}

/// Returns the loader's own message, which `libloading` keeps as the source of its error.
fn cause(error: &libloading::Error) -> String {
    std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string)
}

/// Part of Debian's libibverbs1, which librdmacm1 needs too.
const LIBRARY: &str = "libibverbs.so.1";

// The device reads and writes these: a wrong layout would not be noticed at once. Sizes on 64-bit machines.
const _: () = assert!(size_of::<ibv_sge>() == 16);
const _: () = assert!(size_of::<ibv_send_wr>() == 128);
const _: () = assert!(size_of::<ibv_recv_wr>() == 32);
const _: () = assert!(size_of::<ibv_wc>() == 48);
const _: () = assert!(size_of::<ibv_qp_attr>() == 144);
const _: () = assert!(size_of::<ibv_qp_init_attr>() == 64);
const _: () = assert!(size_of::<ibv_gid_entry>() == 32);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_for_a_missing_library_says_what_to_install() {
        let Err(error) = Library::load_from("libsquall-has-no-such-library.so.1") else {
            panic!("a library that does not exist was loaded")
        };
        assert!(matches!(error, VerbsError::LibraryMissing { .. }), "{error:?}");
        let message = error.to_string();
        assert!(message.contains("libibverbs1") && message.contains("ibverbs-providers"), "{message}");
        assert!(message.contains("no-such-library"), "the loader's reason is included: {message}");
    }

    #[test]
    fn another_library_is_rejected() {
        let Err(error) = Library::load_from("libc.so.6") else { panic!("libc was taken for libibverbs") };
        assert!(matches!(error, VerbsError::LibraryTooOld { .. }), "{error:?}");
    }
}
