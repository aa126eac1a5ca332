//! Takes an input apart into numbers and bytes. Behind its end are zeros.

/// What is left of an input.
#[derive(Clone, Copy, Debug)]
pub struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    /// All of `data`.
    pub fn new(data: &'a [u8]) -> Self {
        Self(data)
    }

    /// Whether nothing is left.
    pub fn is_empty(self) -> bool {
        self.0.is_empty()
    }

    /// The next `length` bytes, or what is left.
    pub fn bytes(&mut self, length: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(length.min(self.0.len()));
        self.0 = rest;
        taken
    }

    /// All that is left.
    pub fn rest(self) -> &'a [u8] {
        self.0
    }

    fn array<const N: usize>(&mut self) -> [u8; N] {
        let mut array = [0; N];
        let taken = self.bytes(N);
        array[..taken.len()].copy_from_slice(taken);
        array
    }

    /// The next byte.
    pub fn u8(&mut self) -> u8 {
        u8::from_le_bytes(self.array())
    }

    /// The next two bytes.
    pub fn u16(&mut self) -> u16 {
        u16::from_le_bytes(self.array())
    }

    /// The next four bytes.
    pub fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.array())
    }

    /// The next eight bytes.
    pub fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.array())
    }

    /// The next bytes with their length, of at most 65535, before them.
    pub fn block(&mut self) -> &'a [u8] {
        let length = self.u16().into();
        self.bytes(length)
    }

    /// Writes over parts of `bytes` as the rest of the input says: an offset, the number of bytes minus one, and the bytes.
    pub fn edit(mut self, bytes: &mut [u8]) {
        while !self.is_empty() && !bytes.is_empty() {
            let at = usize::try_from(self.u32()).unwrap() % bytes.len();
            let count = usize::from(self.u8() % 16) + 1;
            let new = self.bytes(count);
            let end = (at + new.len()).min(bytes.len());
            bytes[at..end].copy_from_slice(&new[..end - at]);
        }
    }
}

/// An edit for [`Input::edit`].
pub fn edit(at: u32, new: &[u8]) -> Vec<u8> {
    let count = u8::try_from(new.len() - 1).unwrap();
    [&at.to_le_bytes()[..], &[count], new].concat()
}

/// A block for [`Input::block`].
pub fn block(bytes: &[u8]) -> Vec<u8> {
    let length = u16::try_from(bytes.len()).unwrap();
    [&length.to_le_bytes()[..], bytes].concat()
}
