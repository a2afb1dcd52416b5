//! Copies of the register, and the register in them.

use squall_log::{COPY_VALUE_BYTES_MAX, RegisterValue, copy_from_bytes, copy_to_bytes};

/// A good copy is written again; a register is, if it is one.
pub fn feed(bytes: &[u8]) {
    if let Some((generation, value)) = copy_from_bytes(bytes) {
        assert_eq!(copy_to_bytes(generation, value), bytes[..value.len() + 24]);
        feed_value(value);
    }
    feed_value(bytes);
}

fn feed_value(bytes: &[u8]) {
    if let Some(register) = RegisterValue::from_bytes(bytes) {
        let written = register.to_bytes();
        assert_eq!(RegisterValue::from_bytes(&written), Some(register));
        let _ = copy_to_bytes(0, &written[..written.len().min(COPY_VALUE_BYTES_MAX)]);
    }
}

/// A new register, and one with a past.
pub fn seeds() -> Vec<Vec<u8>> {
    let new = RegisterValue::new(7, 1);
    let used = RegisterValue { life: 4, protocol: vec![1, 2, 3], ..new.clone() };
    let copies = [&new, &used].map(|register| copy_to_bytes(9, &register.to_bytes()));
    copies.into_iter().chain([used.to_bytes()]).collect()
}
