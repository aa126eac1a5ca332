//! The frames of Go's functions, whose sizes the program's own table tells.

use std::collections::HashMap;
use std::sync::Arc;

use kvmprof_recording::elf::go::{GoCaller, GoTable, frame_size, length_of_sizes};

use super::row_rules::UsualRow;

/// Maximum number of bytes of all changes of sizes.
const MAX_SIZES: usize = 16 << 20;

/// The frames of a program's functions, by the file's virtual addresses.
#[derive(Clone, Debug)]
pub(super) struct GoFrames {
    /// Sorted by address.
    functions: Arc<[Function]>,
    /// The changes of sizes that functions refer to.
    sizes: Arc<[u8]>,
}

#[derive(Clone, Copy, Debug)]
struct Function {
    begin: u64,
    end: u64,
    /// Where its changes are in `sizes`.
    sizes: u32,
    caller: GoCaller,
}

impl GoFrames {
    /// The frames of the program whose file's contents are `file`, if it is one of Go.
    pub fn find(file: &[u8]) -> Option<Self> {
        let (mut functions, mut sizes) = (Vec::new(), Vec::new());
        // Functions share them.
        let mut known: HashMap<&[u8], u32> = HashMap::new();
        for function in GoTable::find(file)?.functions() {
            let Some(length) = length_of_sizes(function.sizes) else {
                continue;
            };
            let own = &function.sizes[..length];
            let place = match known.get(own) {
                Some(place) => *place,
                None if sizes.len() + length > MAX_SIZES => break,
                None => {
                    let place = u32::try_from(sizes.len()).ok()?;
                    sizes.extend_from_slice(own);
                    known.insert(own, place);
                    place
                }
            };
            functions.push(Function {
                begin: function.begin,
                end: function.end,
                sizes: place,
                caller: function.caller,
            });
        }
        functions.sort_by_key(|function| function.begin);
        (!functions.is_empty()).then(|| Self {
            functions: functions.into(),
            sizes: sizes.into(),
        })
    }

    /// The number of functions.
    pub fn functions(&self) -> usize {
        self.functions.len()
    }

    /// Its memory use, in bytes.
    pub fn bytes(&self) -> usize {
        self.functions.len() * size_of::<Function>() + self.sizes.len()
    }

    fn function(&self, address: u64) -> Option<&Function> {
        let after = (self.functions).partition_point(|function| function.begin <= address);
        let function = self.functions.get(after.checked_sub(1)?)?;
        (address < function.end).then_some(function)
    }

    /// Whether `address` is in a function.
    pub fn covers(&self, address: u64) -> bool {
        self.function(address).is_some()
    }

    /// Whether the function at `address` is the outermost one of its stack.
    pub fn is_outermost(&self, address: u64) -> bool {
        let function = self.function(address);
        function.is_some_and(|function| function.caller == GoCaller::Outermost)
    }

    /// How the caller of the function at `address` is found. `None` if that isn't known.
    pub fn row(&self, address: u64) -> Option<UsualRow> {
        let function = self.function(address)?;
        let size = match function.caller {
            GoCaller::Outermost => None,
            GoCaller::Elsewhere => return None,
            GoCaller::AboveFrame => {
                let sizes = self.sizes.get(usize::try_from(function.sizes).ok()?..)?;
                let size = frame_size(sizes, function.begin, address)?;
                Some(i32::try_from(size).ok()?)
            }
        };
        UsualRow::of_go(size)
    }
}
