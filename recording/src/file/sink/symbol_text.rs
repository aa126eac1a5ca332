//! Functions that many recordings share.

use std::sync::{Arc, OnceLock};

use crate::file::{Block, Kind};

/// Functions in the form of `/proc/kallsyms`, for any number of recordings. They are packed when the first one needs them; those of a kernel
/// take some tens of ms.
#[derive(Clone, Debug)]
pub struct SymbolText {
    text: Arc<[u8]>,
    block: Arc<OnceLock<Option<Arc<[u8]>>>>,
}

impl SymbolText {
    /// The functions in this text.
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

    /// The block that all recordings share. `None` if it would be too long.
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
