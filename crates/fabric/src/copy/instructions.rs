//! The copy loops in assembly.
//!
//! Why they are sound although another thread or process may load or store the same words: to the compiler a block of
//! assembly may do what relaxed atomic loads and stores could, one for each word in any order. That is what the processor
//! does. `rep movsq` is defined as loads and stores of whole words, one by one. A 16-byte move splits, if at all, between
//! its two aligned words, so it tears none. `rep movsb` gives no such promise, and its callers exclude other writers.
//!
//! Elsewhere than on x86-64, and where interleavings of threads are explored, which have to see each access, there are no
//! such loops ([`EXIST`]).

use std::ptr::NonNull;

use crate::atomics::AtomicU64;

/// Whether these loops can be used.
pub(super) const EXIST: bool = cfg!(all(target_arch = "x86_64", not(shuttle)));
/// Bytes of a cache line, and of one round of a loop over lines.
pub(super) const LINE_BYTES: usize = 64;
/// Bytes of one move.
pub(super) const VECTOR_BYTES: usize = 16;

/// Copies words by the processor's string instruction, the fastest way to copy words that no cache holds: 19.6 GB/s of
/// 64 MiB, where 16-byte moves copy 14.1 (EPYC).
///
/// # Safety
/// [`EXIST`]. Both ranges are valid for `words` words, which are accessed as atomics or not at all meanwhile.
#[inline]
pub(super) unsafe fn string_words(target: NonNull<AtomicU64>, source: NonNull<AtomicU64>, words: usize) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: as the caller promises; the direction flag is clear, as everywhere between functions.
    unsafe {
        std::arch::asm!(
            "rep movsq",
            inout("rcx") words => _,
            inout("rdi") target.as_ptr() => _,
            inout("rsi") source.as_ptr() => _,
            options(nostack, preserves_flags),
        );
    }
    #[cfg(not(target_arch = "x86_64"))]
    unreachable!("{words} words from {source:?} to {target:?}: x86-64 only");
}

/// Copies bytes by the processor's string instruction. Processors of the last ten years move whole lines here.
///
/// # Safety
/// [`EXIST`]. Both ranges are valid for `bytes` bytes and do not overlap; nothing stores into them meanwhile.
#[inline]
pub(super) unsafe fn string_bytes(target: *mut u8, source: *const u8, bytes: usize) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: as the caller promises; the direction flag is clear, as everywhere between functions.
    unsafe {
        std::arch::asm!(
            "rep movsb",
            inout("rcx") bytes => _,
            inout("rdi") target => _,
            inout("rsi") source => _,
            options(nostack, preserves_flags),
        );
    }
    #[cfg(not(target_arch = "x86_64"))]
    unreachable!("{bytes} bytes from {source:?} to {target:?}: x86-64 only");
}

/// A function that copies lines by 16-byte moves, `$store` being the instruction that stores; what precedes the
/// loads of each round, and what follows all rounds, is given as well.
macro_rules! line_loop {
    ($(#[$about:meta])+ $name:ident, $store:literal, each: [$($each:literal)*], end: [$($end:literal)*]) => {
        $(#[$about])+
        ///
        /// # Safety
        /// [`EXIST`]. Both ranges are valid for `lines` lines, one at least, and do not overlap. Their words are accessed as
        /// atomics or not at all meanwhile; nothing else stores into a range that begins within a word.
        #[inline]
        pub(super) unsafe fn $name(target: *mut u8, source: *const u8, lines: usize) {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as the caller promises, and as the module says.
            unsafe {
                std::arch::asm!(
                    "2:",
                    $($each,)*
                    "movups xmm0, [{source}]",
                    "movups xmm1, [{source} + 16]",
                    "movups xmm2, [{source} + 32]",
                    "movups xmm3, [{source} + 48]",
                    concat!($store, " [{target}], xmm0"),
                    concat!($store, " [{target} + 16], xmm1"),
                    concat!($store, " [{target} + 32], xmm2"),
                    concat!($store, " [{target} + 48], xmm3"),
                    "add {source}, 64",
                    "add {target}, 64",
                    "dec {lines}",
                    "jnz 2b",
                    $($end,)*
                    source = inout(reg) source => _,
                    target = inout(reg) target => _,
                    lines = inout(reg) lines => _,
                    out("xmm0") _,
                    out("xmm1") _,
                    out("xmm2") _,
                    out("xmm3") _,
                    options(nostack),
                );
            }
            #[cfg(not(target_arch = "x86_64"))]
            unreachable!("{lines} lines from {source:?} to {target:?}: x86-64 only");
        }
    };
}

line_loop! {
    /// Copies lines through the cache: of 4 KiB that a cache holds 50 GiB/s, where a loop over atomics, which compilers do not
    /// widen, copies 23.
    wide_lines, "movups", each: [], end: []
}

line_loop! {
    /// Copies lines past the cache, in order before all later stores. The target is aligned to [`VECTOR_BYTES`].
    streamed_lines, "movntps", each: [], end: ["sfence"]
}

line_loop! {
    /// Copies lines through the cache, asking for those 2 KiB ahead, which is a hint and never faults. From 1 to 4 KiB nothing
    /// changes. The target is aligned to [`VECTOR_BYTES`].
    fetched_lines, "movaps", each: ["prefetcht0 [{source} + 2048]" "prefetchw [{target} + 2048]"], end: []
}
