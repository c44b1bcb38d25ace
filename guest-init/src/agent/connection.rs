//! The beginning of a connection: authorization, the request, and the answer to requests that need no more.

use super::channel::{Channel, ChannelError};
use super::{Agent, exec, forward};
use crate::{clock, console};
use proto::agent::{Failed, Message, Op, Reply, Request};
use proto::code::Code;
use proto::codec;
use proto::frame::{DATA_CHUNK_BYTES, Frame, HEADER_BYTES, MAX_PAYLOAD_BYTES};
use proto::version::{AGENT_PROTOCOL, AGENT_PROTOCOL_OLDEST, agent_is_compatible};
use rustix::fd::OwnedFd;
use serde::Deserialize;
use std::time::{Duration, Instant};

/// How long a client may take to send its request. Clients send it at once.
const REQUEST_PATIENCE: Duration = Duration::from_secs(30);

/// What a client that has not shown the secret yet may make us hold.
const AUTH_BUDGET_BYTES: usize = 4 << 10;

/// A request of the greatest length, and what may arrive behind it.
const REQUEST_BUDGET_BYTES: usize = MAX_PAYLOAD_BYTES as usize + HEADER_BYTES + DATA_CHUNK_BYTES;

/// Serves one connection to its end. With a `secret`, the client must know it.
pub fn serve(agent: &Agent, socket: OwnedFd, secret: Option<&[u8]>) {
    let mut channel = Channel::new(socket);
    // An error means that the client is gone or does not speak the protocol: there is nobody to tell.
    if let Ok(opening) = open(&mut channel, secret) {
        match opening {
            Ok(op) => carry_out(agent, channel, op),
            Err(failed) => answer(channel, Reply::Failed(failed)),
        }
    }
}

fn open(channel: &mut Channel, secret: Option<&[u8]>) -> Result<Result<Op, Failed>, ChannelError> {
    let deadline = Instant::now().checked_add(REQUEST_PATIENCE).ok_or(ChannelError::Gone)?;
    if let Some(secret) = secret {
        let frame = channel.wait_for_frame(deadline, AUTH_BUDGET_BYTES)?;
        if !matches!(Message::decode(frame)?, Message::Auth(offered) if is_equal(&offered, secret))
        {
            return Ok(Err(failed(Code::Unauthorized, "the secret does not match")));
        }
    }
    Ok(read_request(channel.wait_for_frame(deadline, REQUEST_BUDGET_BYTES)?))
}

fn read_request(frame: Frame) -> Result<Op, Failed> {
    /// What a request of any version begins with.
    #[derive(Deserialize)]
    struct AnyRequest {
        protocol: u16,
    }
    if frame.kind != proto::agent::kind::REQUEST {
        return Err(failed(Code::BadMessage, "the first frame is not a request"));
    }
    let any: AnyRequest =
        codec::decode(&frame.payload).map_err(|error| failed(Code::BadMessage, error))?;
    if !agent_is_compatible(any.protocol) {
        let message = format!(
            "the guest speaks agent protocol {AGENT_PROTOCOL_OLDEST} to {AGENT_PROTOCOL}, the host {}",
            any.protocol
        );
        return Err(failed(Code::ProtocolMismatch, message));
    }
    let request: Request =
        codec::decode(&frame.payload).map_err(|error| failed(Code::BadMessage, error))?;
    Ok(request.op)
}

fn carry_out(agent: &Agent, mut channel: Channel, op: Op) {
    match op {
        Op::Hello => answer(channel, Reply::Hello(agent.hello())),
        Op::Exec(exec) => exec::serve(agent, channel, &exec),
        Op::Forward { port } => forward::serve(channel, port),
        Op::SetTime { unix_nanos } => {
            let set = clock::set(Duration::from_nanos(unix_nanos));
            answer(
                channel,
                set.map_or_else(|error| Reply::Failed(failed(Code::Io, error)), |()| Reply::Done),
            );
        }
        Op::Sync => {
            rustix::fs::sync();
            answer(channel, Reply::Done);
        }
        Op::Poweroff { grace_ms } => {
            // The answer first: soon there is nobody left to send it.
            channel.queue(&Message::Reply(Reply::Done));
            let _ = channel.flush();
            if let Err(error) = agent.power.press(Duration::from_millis(grace_ms)) {
                console::say(&format!("cannot power off: {error}"));
            }
            channel.finish();
        }
    }
}

/// Sends the only answer.
pub fn answer(mut channel: Channel, reply: Reply) {
    channel.queue(&Message::Reply(reply));
    channel.finish();
}

/// A failure with its explanation.
pub fn failed(code: Code, message: impl ToString) -> Failed {
    Failed { code, message: message.to_string() }
}

/// Compares without telling, by the time it takes, how many bytes are right.
fn is_equal(offered: &[u8], secret: &[u8]) -> bool {
    let difference = offered.iter().zip(secret).fold(0, |sum, (a, b)| sum | (a ^ b));
    offered.len() == secret.len() && difference == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_match_only_in_full() {
        assert!(is_equal(b"secret", b"secret"));
        for wrong in [&b""[..], b"secre", b"secrets", b"Secret"] {
            assert!(!is_equal(wrong, b"secret"));
        }
    }

    #[test]
    fn a_request_from_the_future_is_told_the_versions() {
        #[derive(serde::Serialize)]
        struct FutureRequest {
            protocol: u16,
            op: &'static str,
        }
        let payload = codec::encode(&FutureRequest { protocol: 9000, op: "teleport" });
        let failed =
            read_request(Frame { kind: proto::agent::kind::REQUEST, payload }).unwrap_err();
        assert_eq!(failed.code, Code::ProtocolMismatch);
        assert!(failed.message.contains("9000"));
        let payload = codec::encode(&FutureRequest { protocol: AGENT_PROTOCOL, op: "teleport" });
        let failed =
            read_request(Frame { kind: proto::agent::kind::REQUEST, payload }).unwrap_err();
        assert_eq!(failed.code, Code::BadMessage);
    }
}
