//! The forms of samples: the bytes that travel in the Squall domain, and those of RTPS (RTPS 2.5 §10, encapsulated CDR).

use serde::Deserialize;

use crate::error::FormError;

/// What a sample is in the Squall domain. In the RTPS domain it is always CDR.
///
/// ```
/// use squall_dds_bridge::TopicForm;
///
/// let cdr = TopicForm::Text.to_rtps(b"hello")?;
/// assert_eq!(cdr, [0, 1, 0, 0, 6, 0, 0, 0, b'h', b'e', b'l', b'l', b'o', 0]);
/// assert_eq!(TopicForm::Text.to_squall(cdr)?, b"hello");
/// # Ok::<(), squall_dds_bridge::FormError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TopicForm {
    /// The same bytes as on RTPS: four that name the encoding, and the type in CDR. For any type in plain CDR (XCDR1).
    #[default]
    Cdr,
    /// Text, for types that are one structure with one string, as `std_msgs/String` of ROS 2.
    Text,
}

impl TopicForm {
    /// Returns the bytes on RTPS of a sample of the Squall domain.
    ///
    /// # Errors
    /// [`FormError`] if the sample does not have this form.
    pub fn to_rtps(self, sample: &[u8]) -> Result<Vec<u8>, FormError> {
        match self {
            Self::Cdr => {
                let encoding = encoding(sample)?;
                if encoding == CDR_LE { Ok(sample.to_vec()) } else { Err(FormError::Encoding(encoding)) }
            }
            Self::Text => {
                let is_text = std::str::from_utf8(sample).is_ok() && !sample.contains(&0);
                let length =
                    u32::try_from(sample.len() + 1).ok().filter(|_| is_text).ok_or(FormError::NotText)?;
                let mut cdr = Vec::with_capacity(HEADER_BYTES + 4 + sample.len() + 1);
                cdr.extend(CDR_LE);
                cdr.extend([0, 0]);
                cdr.extend(length.to_le_bytes());
                cdr.extend(sample);
                cdr.push(0);
                Ok(cdr)
            }
        }
    }

    /// Returns the sample of the Squall domain that these bytes on RTPS are. Not fuzzed by a target: proptest gives it any bytes below.
    ///
    /// # Errors
    /// [`FormError`] if they do not have this form.
    pub fn to_squall(self, cdr: Vec<u8>) -> Result<Vec<u8>, FormError> {
        let encoding = encoding(&cdr)?;
        match self {
            Self::Cdr => Ok(cdr),
            Self::Text => one_string(&cdr[HEADER_BYTES..], encoding).map(<[u8]>::to_vec),
        }
    }
}

fn encoding(cdr: &[u8]) -> Result<[u8; 2], FormError> {
    match cdr {
        [first, second, _, _, ..] => Ok([*first, *second]),
        _ => Err(FormError::Short(cdr.len())),
    }
}

/// Returns the text of a structure that is one string: its length with the NUL at its end, its bytes, and the NUL. Up to three bytes of
/// padding may follow.
fn one_string(body: &[u8], encoding: [u8; 2]) -> Result<&[u8], FormError> {
    let (length, rest) = body.split_first_chunk().ok_or(FormError::NotOneString("it has no length"))?;
    let length = match encoding {
        CDR_LE => u32::from_le_bytes(*length),
        CDR_BE => u32::from_be_bytes(*length),
        other => return Err(FormError::Encoding(other)),
    };
    let length = usize::try_from(length).unwrap_or(usize::MAX);
    let string = rest.get(..length).ok_or(FormError::NotOneString("it is shorter than its string"))?;
    let (last, text) = string.split_last().ok_or(FormError::NotOneString("its string has no end"))?;
    let is_string = *last == 0 && !text.contains(&0) && rest.len() - length < ALIGNMENT;
    if !is_string {
        return Err(FormError::NotOneString("it has more than a string"));
    }
    std::str::from_utf8(text).map_err(|_| FormError::NotText)?;
    Ok(text)
}

/// The encoding in two bytes, and two of options.
pub(crate) const HEADER_BYTES: usize = 4;
const CDR_BE: [u8; 2] = [0, 0];
const CDR_LE: [u8; 2] = [0, 1];
const ALIGNMENT: usize = 4;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn both_orders_of_bytes_are_read() {
        let big = [0, 0, 0, 0, 0, 0, 0, 3, b'o', b'k', 0, 0].to_vec();
        assert_eq!(TopicForm::Text.to_squall(big).unwrap(), b"ok");
    }

    #[test]
    fn other_types_are_refused_as_text() {
        let two_fields = [0, 1, 0, 0, 2, 0, 0, 0, b'a', 0, 0, 0, 7, 0, 0, 0].to_vec();
        let error = TopicForm::Text.to_squall(two_fields).unwrap_err();
        assert_eq!(error, FormError::NotOneString("it has more than a string"));
        let long = [0, 1, 0, 0, 255, 255, 255, 255, b'a'].to_vec();
        assert!(matches!(TopicForm::Text.to_squall(long), Err(FormError::NotOneString(_))));
        assert_eq!(
            TopicForm::Text.to_squall(vec![0, 6, 0, 0, 1, 0, 0, 0, 0]),
            Err(FormError::Encoding([0, 6]))
        );
    }

    #[test]
    fn what_cannot_be_written_is_refused() {
        assert_eq!(TopicForm::Cdr.to_rtps(&[0, 1]), Err(FormError::Short(2)));
        assert_eq!(TopicForm::Cdr.to_rtps(&[0, 0, 0, 0]), Err(FormError::Encoding([0, 0])));
        assert_eq!(TopicForm::Text.to_rtps(b"a\0b"), Err(FormError::NotText));
    }

    proptest! {
        #[test]
        fn text_comes_back(text in "[^\0]{0,40}") {
            let cdr = TopicForm::Text.to_rtps(text.as_bytes()).unwrap();
            prop_assert_eq!(TopicForm::Text.to_squall(cdr).unwrap(), text.as_bytes());
        }

        /// Whatever a foreign participant sends is a sample, or an error.
        #[test]
        fn any_bytes_are_read(bytes in proptest::collection::vec(any::<u8>(), 0..64), is_cdr in any::<bool>()) {
            let mut bytes = bytes;
            if is_cdr && bytes.len() >= HEADER_BYTES {
                bytes[..2].copy_from_slice(&CDR_LE);
            }
            if let Ok(text) = TopicForm::Text.to_squall(bytes.clone()) {
                prop_assert!(std::str::from_utf8(&text).is_ok());
            }
            prop_assert_eq!(TopicForm::Cdr.to_squall(bytes.clone()).is_ok(), bytes.len() >= HEADER_BYTES);
        }
    }
}
