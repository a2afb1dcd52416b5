//! Parcels: files that travel as one object. Each object costs some round trips, so small files travel together; a file of more
//! than a block travels alone, from pages to pages.

use super::BLOCK_BYTES;

/// How the files of a parcel travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ParcelKind {
    /// One file, which can be resumed block by block.
    Alone,
    /// One after the other, through memory: this number of bytes in all.
    Together(usize),
}

/// Divides files into parcels: for each the indexes of its files in `sizes`. The small ones come first.
pub(crate) fn parcels(sizes: &[u64]) -> Vec<Vec<usize>> {
    let (small, large): (Vec<usize>, Vec<usize>) = (0..sizes.len()).partition(|file| is_small(sizes[*file]));
    let mut parcels: Vec<Vec<usize>> = Vec::new();
    let mut bytes = 0;
    for file in small {
        match parcels.last_mut() {
            Some(last) if bytes + sizes[file] <= BYTES_MAX && last.len() < FILES_MAX => last.push(file),
            _ => {
                parcels.push(vec![file]);
                bytes = 0;
            }
        }
        bytes += sizes[file];
    }
    parcels.extend(large.into_iter().map(|file| vec![file]));
    parcels
}

/// How files of these sizes travel; `None` if they are no parcel.
pub(crate) fn kind(sizes: &[u64]) -> Option<ParcelKind> {
    match sizes {
        [] => None,
        [size] if !is_small(*size) => Some(ParcelKind::Alone),
        _ if sizes.len() > FILES_MAX || !sizes.iter().all(|size| is_small(*size)) => None,
        _ => {
            let bytes = sizes.iter().sum::<u64>();
            (bytes <= BYTES_MAX)
                .then_some(ParcelKind::Together(usize::try_from(bytes).expect("some megabytes")))
        }
    }
}

/// Such a file is sent again as a whole if the copy was interrupted.
const fn is_small(bytes: u64) -> bool {
    bytes <= BLOCK_BYTES
}

/// The memory that each host uses for a parcel.
const BYTES_MAX: u64 = 8 * BLOCK_BYTES;
/// A bound after which the hosts report progress.
const FILES_MAX: usize = 1024;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Each file is in one parcel, and the receiver accepts each parcel.
        #[test]
        fn all_files_are_in_parcels(sizes in proptest::collection::vec(0..3 * BLOCK_BYTES, 0..100)) {
            let parcels = parcels(&sizes);
            let mut files: Vec<usize> = parcels.concat();
            files.sort_unstable();
            prop_assert_eq!(files, (0..sizes.len()).collect::<Vec<_>>());
            for parcel in parcels {
                let sizes: Vec<u64> = parcel.iter().map(|file| sizes[*file]).collect();
                prop_assert!(kind(&sizes).is_some(), "{sizes:?}");
            }
        }
    }

    #[test]
    fn small_files_travel_together() {
        assert_eq!(parcels(&[1 << 10; 2000]).len(), 2);
        assert_eq!(parcels(&[5, BLOCK_BYTES + 1, 7]), [vec![0, 2], vec![1]]);
        assert_eq!(parcels(&[BLOCK_BYTES; 9]).len(), 2);
        assert_eq!(kind(&[5, 7]), Some(ParcelKind::Together(12)));
        assert_eq!(kind(&[BLOCK_BYTES + 1]), Some(ParcelKind::Alone));
    }

    #[test]
    fn what_no_source_sends_is_no_parcel() {
        for sizes in [&[][..], &[1, BLOCK_BYTES + 1], &[BLOCK_BYTES; 9], &[0; FILES_MAX + 1], &[u64::MAX; 2]]
        {
            assert_eq!(kind(sizes), None);
        }
    }
}
