//! Every body on inputs that are the same on every machine: those by which the fuzzer reached new code, those that once
//! broke something, and some thousand from a generator with fixed seeds.
//!
//! `corpus/<body>.bin` holds the fuzzer's, each with its length in two bytes before it: hundreds of tiny files would be
//! a nuisance. `corpus/<body>/` holds one file per mended fault, named after its symptom.

use std::path::Path;

/// Inputs from the generator per body. Bodies that build whole images or sockets are slower than others.
fn rounds(name: &str) -> u64 {
    match name {
        "vsock" => 500,
        "erofs_tar" => 1500,
        _ => 3000,
    }
}

/// Marsaglia's xorshift: not random, but the same for ever.
struct Xorshift(u64);

impl Xorshift {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// Bytes, of which some inputs have more that are small: those decide more and scatter less.
    fn bytes(&mut self, max_len: u64) -> Vec<u8> {
        let len = self.next() % max_len;
        let small = self.next() % 4;
        (0..len)
            .map(|_| {
                let word = self.next().to_le_bytes();
                if u64::from(word[1] & 3) < small { word[0] & 15 } else { word[0] }
            })
            .collect()
    }
}

fn replay(name: &str) {
    let (_, body) = fuzz::BODIES.iter().find(|(known, _)| *known == name).unwrap();
    body(&[]);
    for byte in 0..=255 {
        body(&[byte]);
        body(&[byte; 64]);
    }
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    for input in packed(&std::fs::read(corpus.join(name).with_extension("bin")).unwrap()) {
        body(input);
    }
    let mended = corpus.join(name);
    if mended.exists() {
        for entry in std::fs::read_dir(mended).unwrap() {
            body(&std::fs::read(entry.unwrap().path()).unwrap());
        }
    }
    for round in 0..rounds(name) {
        let mut generator =
            Xorshift(0x9e37_79b9_7f4a_7c15 ^ round.wrapping_mul(0xd134_2543_de82_ef95) | 1);
        let input = generator.bytes(1 << (4 + round % 8));
        let outcome = std::panic::catch_unwind(|| body(&input));
        assert!(outcome.is_ok(), "{name} fails in round {round} on {input:02x?}");
    }
}

/// Inputs that are packed one behind the other.
fn packed(mut bytes: &[u8]) -> Vec<&[u8]> {
    let mut inputs = Vec::new();
    while let Some((len, rest)) = bytes.split_first_chunk() {
        let (input, rest) = rest.split_at(u16::from_le_bytes(*len).into());
        inputs.push(input);
        bytes = rest;
    }
    inputs
}

macro_rules! replays {
    ($($name:ident),+ $(,)?) => {
        $(
            #[test]
            fn $name() {
                replay(stringify!($name));
            }
        )+

        #[test]
        fn every_body_is_replayed() {
            let names: Vec<_> = fuzz::BODIES.iter().map(|(name, _)| *name).collect();
            assert_eq!(names, [$(stringify!($name)),+]);
        }
    };
}

replays!(
    agent_frames,
    blk,
    console,
    control_frames,
    erofs_tar,
    launch_request,
    mmio_transport,
    rng,
    vsock,
);
