//! What an operation that may take long is just doing, told to whoever wants to show it.

use crate::BoxName;
use std::io::{self, Read};

/// A step that has begun, or has come further.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step<'a> {
    /// An image is being made.
    Importing {
        /// How much of its source was read, in MiB.
        mib: u64,
    },
    /// A box is being booted.
    Booting(&'a BoxName),
}

/// Hears of steps.
pub type Tell<'a> = dyn FnMut(Step<'_>) + 'a;

/// The source of an image, which tells how much of it was read: once a MiB, since hearing that costs as well.
pub(crate) struct Counted<'a, R> {
    source: R,
    bytes: u64,
    told_mib: u64,
    tell: &'a mut Tell<'a>,
}

impl<'a, R: Read> Counted<'a, R> {
    /// Begins to read.
    pub(crate) fn new(source: R, tell: &'a mut Tell<'a>) -> Self {
        tell(Step::Importing { mib: 0 });
        Self { source, bytes: 0, told_mib: 0, tell }
    }
}

impl<R: Read> Read for Counted<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let len = self.source.read(buffer)?;
        self.bytes = self.bytes.saturating_add(u64::try_from(len).unwrap_or(u64::MAX));
        let mib = self.bytes >> 20;
        if mib > self.told_mib {
            self.told_mib = mib;
            (self.tell)(Step::Importing { mib });
        }
        Ok(len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_mib_is_told_once() {
        let mut told = Vec::new();
        let mut tell = |step: Step<'_>| match step {
            Step::Importing { mib } => told.push(mib),
            Step::Booting(_) => unreachable!("nothing boots"),
        };
        let mut counted = Counted::new(io::repeat(7).take((2 << 20) + 5), &mut tell);
        let read = io::copy(&mut counted, &mut io::sink()).unwrap();
        assert_eq!((read, told), ((2 << 20) + 5, vec![0, 1, 2]));
    }
}
