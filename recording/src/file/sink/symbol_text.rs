//! Functions that many recordings have.

use std::sync::{Arc, OnceLock};

use crate::file::{Block, Kind};

/// Functions in the form of `/proc/kallsyms`, for any number of recordings: packed once, by whoever needs it first. A kernel's take
/// some tens of ms.
#[derive(Clone, Debug)]
pub struct SymbolText {
    text: Arc<[u8]>,
    block: Arc<OnceLock<Option<Arc<[u8]>>>>,
}

impl SymbolText {
    /// These functions.
    pub fn new(text: Arc<[u8]>) -> Self {
        Self {
            text,
            block: Arc::default(),
        }
    }

    /// The functions as text.
    pub fn text(&self) -> &Arc<[u8]> {
        &self.text
    }

    /// Its block of a recording, which all have in common. `None` if it would be too long.
    pub fn block(&self) -> Option<Arc<[u8]>> {
        let pack = || Block::encode(Kind::Symbols, &self.text).map(Arc::from);
        self.block.get_or_init(pack).clone()
    }

    /// Whether the block has been made.
    #[cfg(test)]
    pub(super) fn is_packed(&self) -> bool {
        self.block.get().is_some()
    }
}

impl From<String> for SymbolText {
    fn from(text: String) -> Self {
        Self::new(text.into_bytes().into())
    }
}
