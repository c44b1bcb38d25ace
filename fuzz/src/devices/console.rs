//! The console.

use crate::guest::{DATA, Guest};
use crate::input::Input;
use std::sync::{Arc, Mutex};
use vmm::virtio::console::{Console, ConsoleSink};

const OUTPUT: usize = 1;

#[derive(Clone, Default)]
struct LastPiece(Arc<Mutex<Vec<u8>>>);

impl ConsoleSink for LastPiece {
    fn output(&mut self, bytes: &[u8]) {
        *self.0.lock().expect("nobody panics with the output") = bytes.to_vec();
    }
}

/// Attacks a console.
///
/// # Panics
/// When a reset does not bring it back.
pub fn run(data: &[u8]) {
    let last = LastPiece::default();
    let sink = Box::new(last.clone());
    let mut guest = Guest::new(|io| Box::new(Console::new(sink, io)));
    guest.attack(&mut Input::new(data), |guest, input| {
        let address = guest.address(input);
        guest.offer(OUTPUT, &[(address, input.length(), false)]);
    });
    guest.reform();
    guest.put(DATA, b"still here");
    guest.offer(OUTPUT, &[(DATA, 10, false)]);
    guest.notify(OUTPUT);
    assert_eq!(
        *last.0.lock().expect("nobody panics with the output"),
        b"still here",
        "a friendly driver is served"
    );
}
