//! Decisions, taken from bytes. When the bytes run out, every decision is zero.

/// Bytes not yet used.
pub(crate) struct Input<'a> {
    bytes: &'a [u8],
}

impl<'a> Input<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    fn array<const N: usize>(&mut self) -> [u8; N] {
        let mut array = [0; N];
        let count = N.min(self.bytes.len());
        array[..count].copy_from_slice(self.take(count));
        array
    }

    /// Up to that many bytes.
    pub(crate) fn take(&mut self, count: usize) -> &'a [u8] {
        let (head, rest) = self.bytes.split_at(count.min(self.bytes.len()));
        self.bytes = rest;
        head
    }

    /// All that is left.
    pub(crate) fn rest(&mut self) -> &'a [u8] {
        self.take(self.bytes.len())
    }

    pub(crate) fn u8(&mut self) -> u8 {
        u8::from_le_bytes(self.array())
    }

    pub(crate) fn u16(&mut self) -> u16 {
        u16::from_le_bytes(self.array())
    }

    pub(crate) fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.array())
    }

    pub(crate) fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.array())
    }

    /// A number below `bound`.
    pub(crate) fn below(&mut self, bound: u8) -> u8 {
        self.u8() % bound
    }

    pub(crate) fn flag(&mut self) -> bool {
        self.u8() & 1 == 1
    }

    /// A length: often one that drivers use, often one that they do not.
    pub(crate) fn length(&mut self) -> u32 {
        match self.below(8) {
            0 => 0,
            1 => 1,
            2 => u32::from(self.u8()),
            3 => 512 * u32::from(self.below(8)),
            4 => 16 * u32::from(self.below(40)),
            5 => u32::from(self.u16()),
            6 => u32::MAX - u32::from(self.u8()),
            _ => self.u32(),
        }
    }
}
