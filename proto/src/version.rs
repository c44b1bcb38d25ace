//! Versions of the protocols.
//!
//! Boxes outlive upgrades, so an old guest must be able to talk to a new host and the reverse. Messages are maps
//! with named fields: a field may be added (with a default) without a new version. A version goes up when an old
//! peer would misunderstand; the peer then answers [`crate::code::Code::ProtocolMismatch`] instead of guessing.

/// Version of the agent protocol, sent in every first frame.
pub const AGENT_PROTOCOL: u16 = 1;

/// Version of the launch channel's messages.
pub const LAUNCH_PROTOCOL: u16 = 1;

/// Version of the control socket's messages.
pub const CONTROL_PROTOCOL: u16 = 1;

/// Oldest agent protocol that this build still speaks.
pub const AGENT_PROTOCOL_OLDEST: u16 = 1;

/// Tells whether a peer that announces `version` of the agent protocol is understood.
#[must_use]
pub fn agent_is_compatible(version: u16) -> bool {
    (AGENT_PROTOCOL_OLDEST..=AGENT_PROTOCOL).contains(&version)
}
