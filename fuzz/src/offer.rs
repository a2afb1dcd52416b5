//! Offers, by which two nodes agree on a way to reach each other, after the peer has proved the cluster's secret.

use squall_transports::composite::{OFFER_BYTES, RdmaNetwork, Rendezvous, TransportOffer};

/// What is taken can be written again.
pub fn feed(bytes: &[u8]) {
    let Ok(bytes) = <&[u8; OFFER_BYTES]>::try_from(bytes) else { return };
    if let Ok(offer) = TransportOffer::from_bytes(bytes) {
        assert_eq!(offer.to_bytes(), *bytes);
    }
}

/// Offers of nothing and of all.
pub fn seeds() -> Vec<Vec<u8>> {
    let socket = Some(Rendezvous { name: [3; 16], key: [4; 32] });
    let bare = TransportOffer { host: [1; 16], user: 2, socket: None, network: None };
    let full = TransportOffer { socket, network: Some(RdmaNetwork::InfiniBand([5; 8])), ..bare.clone() };
    vec![bare.to_bytes().to_vec(), full.to_bytes().to_vec()]
}
