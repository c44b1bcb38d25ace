//! Entropy.

use crate::guest::{DATA, Guest};
use crate::input::Input;
use vmm::virtio::rng::Rng;

/// Attacks an entropy device.
///
/// # Panics
/// When a reset does not bring it back.
pub fn run(data: &[u8]) {
    let mut guest = Guest::new(|io| Box::new(Rng::new(io)));
    guest.attack(&mut Input::new(data), |guest, input| {
        let address = guest.address(input);
        guest.offer(0, &[(address, input.length(), true)]);
    });
    guest.reform();
    guest.put(DATA, &[0; 64]);
    guest.offer(0, &[(DATA, 32, true)]);
    guest.notify(0);
    assert_eq!(guest.used_index(0), 1);
    assert_ne!(guest.bytes(DATA, 32), [0; 32], "a friendly driver is served");
    assert_eq!(guest.bytes(DATA + 32, 32), [0; 32]);
}
