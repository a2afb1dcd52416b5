//! Types of topics: how samples become bytes, and which instance they belong to (OMG DDS 1.4 §2.2.1.2.2, keys).

use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::buffer::SampleBuffer;
use crate::error::DataError;
use crate::sample::InstanceHandle;

/// A type whose values are samples. Types that serde knows implement [`Keyed`]; `Vec<u8>` is bytes as they are, without a key, which
/// [`crate::DataWriter::write_in_place`] writes without a copy. [`Bytes`] are the same for readers that share them with the topic's history
/// and with other readers of the process, where a vector is a copy for each. Short ones may be a part of a larger piece of memory, at most 4 KiB,
/// which is free when all samples there are dropped: an application that keeps a few of many for long copies them.
///
/// ```
/// use squall_dds::{Bytes, TopicData};
///
/// assert_eq!(Vec::<u8>::from_sample(b"raw")?, b"raw");
/// assert_eq!(Bytes::type_name(), Vec::<u8>::type_name()); // one reads what the other has written
/// # Ok::<(), squall_dds::DataError>(())
/// ```
pub trait TopicData: Sized + Send + 'static {
    /// The name of the type, the same at all participants. Endpoints with other names do not match.
    fn type_name() -> &'static str;

    /// Returns a number that changes with the form of the type, or 0. Topics that are created at run time compare it, if both sides have
    /// one.
    #[must_use]
    fn type_hash() -> u64 {
        0
    }

    /// Returns the bytes of the key: samples with equal keys are of one instance.
    ///
    /// # Errors
    /// [`DataError`] if the key cannot be serialised.
    fn key_bytes(&self) -> Result<Vec<u8>, DataError>;

    /// Returns the bytes of the sample.
    ///
    /// # Errors
    /// [`DataError`] if it cannot be serialised.
    fn to_sample(&self) -> Result<Vec<u8>, DataError>;

    /// Returns the sample of these bytes. Not fuzzed: the type is the application's.
    ///
    /// # Errors
    /// [`DataError`] if they are none.
    fn from_sample(bytes: &[u8]) -> Result<Self, DataError>;

    /// Returns the sample of bytes that are not needed any more: a type that is bytes can keep them.
    ///
    /// # Errors
    /// [`DataError`] if they are none.
    fn from_owned(bytes: SampleBuffer) -> Result<Self, DataError> {
        Self::from_sample(&bytes)
    }

    /// Returns the sample of bytes that the topic's history or other readers may have, too.
    ///
    /// # Errors
    /// [`DataError`] if they are none.
    fn from_shared(bytes: Bytes) -> Result<Self, DataError> {
        // What no other has is kept by a type that is bytes.
        if bytes.is_unique() { Self::from_owned(Vec::from(bytes).into()) } else { Self::from_sample(&bytes) }
    }
}

/// A type that serde knows, with a key. Samples are written in the postcard format.
///
/// ```
/// use serde::{Deserialize, Serialize};
/// use squall_dds::{InstanceHandle, Keyed};
///
/// #[derive(Serialize, Deserialize)]
/// struct Reading {
///     sensor: u32,
///     celsius: f32,
/// }
///
/// impl Keyed for Reading {
///     const TYPE_NAME: &'static str = "Reading";
///     type Key = u32;
///     fn key(&self) -> u32 {
///         self.sensor
///     }
/// }
///
/// let [one, other] = [20.0, 21.5].map(|celsius| Reading { sensor: 7, celsius });
/// assert_eq!(InstanceHandle::of(&one)?, InstanceHandle::of(&other)?);
/// # Ok::<(), squall_dds::DataError>(())
/// ```
pub trait Keyed: Serialize + DeserializeOwned + Send + 'static {
    /// The name of the type, the same at all participants.
    const TYPE_NAME: &'static str;
    /// A number that changes with the form of the type ([`TopicData::type_hash`]): serde does not know the form, so its author chooses it.
    const TYPE_HASH: u64 = 0;
    /// The type of the key; `()` if there is one instance only.
    type Key: Serialize;

    /// Returns the key of a sample.
    fn key(&self) -> Self::Key;
}

impl<T: Keyed> TopicData for T {
    fn type_name() -> &'static str {
        T::TYPE_NAME
    }

    fn type_hash() -> u64 {
        T::TYPE_HASH
    }

    fn key_bytes(&self) -> Result<Vec<u8>, DataError> {
        postcard::to_stdvec(&self.key()).map_err(|error| explain(T::TYPE_NAME, &error))
    }

    fn to_sample(&self) -> Result<Vec<u8>, DataError> {
        postcard::to_stdvec(self).map_err(|error| explain(T::TYPE_NAME, &error))
    }

    fn from_sample(bytes: &[u8]) -> Result<Self, DataError> {
        postcard::from_bytes(bytes).map_err(|error| explain(T::TYPE_NAME, &error))
    }
}

impl TopicData for Vec<u8> {
    fn type_name() -> &'static str {
        "bytes"
    }

    fn key_bytes(&self) -> Result<Vec<u8>, DataError> {
        Ok(Self::new())
    }

    fn to_sample(&self) -> Result<Vec<u8>, DataError> {
        Ok(self.clone())
    }

    fn from_sample(bytes: &[u8]) -> Result<Self, DataError> {
        Ok(bytes.to_vec())
    }

    fn from_owned(bytes: SampleBuffer) -> Result<Self, DataError> {
        Ok(bytes.into_vec())
    }
}

impl TopicData for Bytes {
    fn type_name() -> &'static str {
        <Vec<u8>>::type_name()
    }

    fn key_bytes(&self) -> Result<Vec<u8>, DataError> {
        Ok(Vec::new())
    }

    fn to_sample(&self) -> Result<Vec<u8>, DataError> {
        Ok(self.to_vec())
    }

    fn from_sample(bytes: &[u8]) -> Result<Self, DataError> {
        Ok(Self::copy_from_slice(bytes))
    }

    fn from_owned(bytes: SampleBuffer) -> Result<Self, DataError> {
        Ok(bytes.into())
    }

    fn from_shared(bytes: Bytes) -> Result<Self, DataError> {
        Ok(bytes)
    }
}

impl InstanceHandle {
    /// Returns the instance that a sample belongs to.
    ///
    /// # Errors
    /// [`DataError`] if its key cannot be serialised.
    pub fn of<T: TopicData>(sample: &T) -> Result<Self, DataError> {
        sample.key_bytes().map(|key| Self::from_key(&key))
    }
}

fn explain(type_name: &'static str, error: &postcard::Error) -> DataError {
    DataError { type_name, cause: error.to_string() }
}
