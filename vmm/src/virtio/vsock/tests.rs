//! The device as its driver and the host's programs see it.

mod driver;
mod ends;
mod flow;
mod hostile;
mod opening;
mod threaded;
