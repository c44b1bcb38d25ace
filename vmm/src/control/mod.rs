//! Who may ask what of a running machine, and what is then done.
//!
//! - [`decide`]: the one table: state and event in, actions out; no clock, no descriptor;
//! - [`server`]: the control socket: clients that may be slow, hostile or gone;
//! - [`lifecycle`]: what the guest's PID 1 says about itself, and the request that it power off;
//! - [`signals`]: SIGTERM as a descriptor;
//! - [`supervisor`]: the main thread, which waits for events and carries out actions.

pub mod decide;
pub mod lifecycle;
pub mod server;
pub mod signals;
pub mod supervisor;
