//! The memory in which a profile's counts and samples are stored.

/// Why a store can't be made now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blocked {
    /// The page isn't there, or is shared until it is written (copy on write). A later store may succeed.
    NotYet,
    /// The process can't write to this address.
    Fault,
}

/// The memory of a process that stands still.
pub trait ProcessMemory {
    /// Replaces the 16-bit number at `address` by the result of `change`. If that is `None`, the number stays as it is.
    ///
    /// # Errors
    /// The store can't be made. Nothing has changed, and `change` wasn't called.
    fn update_count(
        &mut self,
        address: u64,
        change: &mut dyn FnMut(u16) -> Option<u16>,
    ) -> Result<(), Blocked>;

    /// Stores a 64-bit number at `address`.
    ///
    /// # Errors
    /// The store can't be made. Nothing has changed.
    fn store_word(&mut self, address: u64, word: u64) -> Result<(), Blocked>;
}

/// A buffer of the device's own, as a memory that begins at address 0 and has nothing else.
#[derive(Debug, Default)]
pub struct KeptBuffer(Vec<u8>);

impl KeptBuffer {
    /// A buffer of `size` zeros.
    pub fn new(size: usize) -> Self {
        Self(vec![0; size])
    }

    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    fn place<const N: usize>(&mut self, address: u64) -> Result<&mut [u8; N], Blocked> {
        let address = usize::try_from(address).map_err(|_| Blocked::Fault)?;
        let rest = self.0.get_mut(address..);
        rest.and_then(<[u8]>::first_chunk_mut).ok_or(Blocked::Fault)
    }
}

impl ProcessMemory for KeptBuffer {
    fn update_count(
        &mut self,
        address: u64,
        change: &mut dyn FnMut(u16) -> Option<u16>,
    ) -> Result<(), Blocked> {
        let place = self.place(address)?;
        if let Some(count) = change(u16::from_le_bytes(*place)) {
            *place = count.to_le_bytes();
        }
        Ok(())
    }

    fn store_word(&mut self, address: u64, word: u64) -> Result<(), Blocked> {
        *self.place(address)? = word.to_le_bytes();
        Ok(())
    }
}
