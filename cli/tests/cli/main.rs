//! The command line, as a user sees it, without a virtual machine: the VMM is a stand-in (`examples/fake-vmm.rs`).

mod exec;
mod harness;
mod images;
mod launch;
mod lifecycle;
mod progress;
mod terminal;
mod usage;
