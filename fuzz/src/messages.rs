//! What comes over sockets: from guests, whose PID 1 may be anybody's by now, and from clients of a box.

use crate::input::Input;
use proto::agent::Message;
use proto::codec;
use proto::control::{ControlReply, ControlRequest, KIND_REPLY, KIND_REQUEST};
use proto::frame::{Frame, FrameDecoder, MAX_PAYLOAD_BYTES};
use proto::launch::{LaunchReply, LaunchRequest};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fmt::Debug;

/// A byte stream between host and guest, in pieces of any size.
///
/// # Panics
/// When a message does not survive being encoded again.
pub fn agent_frames(data: &[u8]) {
    for frame in frames(data) {
        if let Ok(message) = Message::decode(frame) {
            let encoded = message.encode().expect("what came in a frame fits into one");
            let mut decoder = FrameDecoder::new();
            decoder.push(&encoded);
            let frame = decoder.next_frame().expect("our own frame").expect("a whole one");
            assert_eq!(Message::decode(frame).expect("our own message"), message);
            assert!(decoder.into_rest().is_empty());
        }
    }
}

/// A byte stream on a control socket.
///
/// # Panics
/// When a message does not survive being encoded again.
pub fn control_frames(data: &[u8]) {
    for frame in frames(data) {
        match frame.kind {
            KIND_REQUEST => round_trip::<ControlRequest>(&frame.payload),
            KIND_REPLY => round_trip::<ControlReply>(&frame.payload),
            // Random kinds would hardly ever hit the two.
            _ => {
                round_trip::<ControlRequest>(&frame.payload);
                round_trip::<ControlReply>(&frame.payload);
            }
        }
    }
}

/// The packet on a launch channel, and its answer.
///
/// # Panics
/// When a message does not survive being encoded again.
pub fn launch_request(data: &[u8]) {
    round_trip::<LaunchRequest>(data);
    round_trip::<LaunchReply>(data);
}

/// Splits bytes into frames as a reader would that gets them in pieces.
fn frames(data: &[u8]) -> Vec<Frame> {
    let mut input = Input::new(data);
    let piece = usize::from(input.u8()) + 1;
    let stream = input.rest();
    let mut decoder = FrameDecoder::new();
    let mut frames = Vec::new();
    let mut framed_bytes = 0;
    for piece in stream.chunks(piece) {
        decoder.push(piece);
        loop {
            match decoder.next_frame() {
                Ok(Some(frame)) => {
                    framed_bytes += 5 + frame.payload.len();
                    frames.push(frame);
                }
                Ok(None) => break,
                Err(_) => return frames,
            }
        }
    }
    let rest = decoder.into_rest();
    assert!(rest.len() <= 5 + MAX_PAYLOAD_BYTES as usize);
    assert_eq!(framed_bytes + rest.len(), stream.len(), "no byte is lost or made up");
    frames
}

fn round_trip<T: Serialize + DeserializeOwned + PartialEq + Debug>(bytes: &[u8]) {
    if let Ok(message) = codec::decode::<T>(bytes) {
        let again = codec::decode::<T>(&codec::encode(&message)).expect("our own message");
        assert_eq!(again, message);
    }
}
