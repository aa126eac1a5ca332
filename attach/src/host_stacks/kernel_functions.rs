//! The functions of the host's kernel.

use std::io;
use std::{fs, ops::Range};

use kvmprof_abi::kallsyms::{KernelSymbol, is_function};

use super::named;

/// The lowest address of the kernel: those of user programs are below it.
const KERNEL_BEGIN: u64 = 1 << 63;
/// The maximum distance of an address from the start of its function, in bytes. An address that is farther away counts as unknown: the list has no
/// lengths, and doesn't have all code.
const LONGEST: u64 = 64 << 10;

/// The functions, by address.
#[derive(Debug, Default)]
pub struct KernelFunctions {
    /// The address of each function, and the range of its line in the text.
    functions: Vec<(u64, Range<u32>)>,
    /// The addresses of other symbols, where functions end.
    ends: Vec<u64>,
    text: Vec<u8>,
}

impl KernelFunctions {
    /// Reads the functions of the kernel that runs.
    ///
    /// # Errors
    /// /proc/kallsyms can't be read.
    pub fn read() -> io::Result<Self> {
        fs::read("/proc/kallsyms").map(Self::parse)
    }

    /// Reads a text in the form of `/proc/kallsyms`.
    fn parse(text: Vec<u8>) -> Self {
        let (mut functions, mut ends) = (Vec::new(), Vec::new());
        let mut begin = 0_u32;
        for line in text.split_inclusive(|byte| *byte == b'\n') {
            let end = begin.saturating_add(u32::try_from(line.len()).unwrap_or(u32::MAX));
            let symbol = KernelSymbol::parse(line);
            match symbol.filter(|symbol| symbol.address >= KERNEL_BEGIN) {
                Some(symbol) if is_function(symbol.kind) && !symbol.is_end() => {
                    functions.push((symbol.address, begin..end));
                }
                Some(symbol) => ends.push(symbol.address),
                None => {}
            }
            begin = end;
        }
        // If an address has several names, the first one counts.
        functions.sort_by_key(|(address, _)| *address);
        functions.dedup_by_key(|(address, _)| *address);
        ends.sort_unstable();
        Self {
            functions,
            ends,
            text,
        }
    }

    /// Whether there are no functions: all addresses are 0 where the kernel hides them.
    pub fn is_empty(&self) -> bool {
        self.functions.is_empty()
    }

    /// Where the function `name` begins.
    #[cfg(test)]
    pub fn address_of(&self, name: &str) -> Option<u64> {
        let is_it = |(_, line): &&(u64, Range<u32>)| {
            let symbol = KernelSymbol::parse(&self.text[line.start as usize..line.end as usize]);
            symbol.is_some_and(|symbol| symbol.name == name.as_bytes())
        };
        self.functions
            .iter()
            .find(is_it)
            .map(|(address, _)| *address)
    }

    /// The name of the function at `address`, with its module.
    pub fn name(&self, address: u64) -> Option<String> {
        let after = self
            .functions
            .partition_point(|(begin, _)| *begin <= address);
        let (begin, line) = self.functions.get(after.checked_sub(1)?)?;
        let end = self.ends.partition_point(|end| end <= begin);
        let is_in = self.ends.get(end).is_none_or(|end| address < *end);
        (is_in && address - begin < LONGEST).then_some(())?;
        let line = self.text.get(line.start as usize..line.end as usize)?;
        let symbol = KernelSymbol::parse(line)?;
        let module = symbol.module.and_then(|module| {
            let module = module.strip_prefix(b"[")?;
            module.strip_suffix(b"]")
        });
        let text = |bytes| String::from_utf8_lossy(bytes);
        let module = module.map_or("kernel".into(), text);
        Some(named(&text(symbol.name), &module))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_the_name_of_the_function_before_it() {
        let text = "ffffffff81000000 T _text\nffffffff81000000 T startup_64\nffffffff81000100 D data\n\
                    ffffffff81000200 t work\nffffffffc0001000 t kvm_vcpu_ioctl\t[kvm]\n";
        let functions = KernelFunctions::parse(text.as_bytes().to_vec());
        for (address, name) in [
            (0xffff_ffff_8000_0000, ""),
            (0xffff_ffff_8100_00ff, "_text\t[host:kernel]"),
            // That is data.
            (0xffff_ffff_8100_0150, ""),
            (0xffff_ffff_8100_0200, "work\t[host:kernel]"),
            (0xffff_ffff_c000_1234, "kvm_vcpu_ioctl\t[host:kvm]"),
        ] {
            let found = functions.name(address).unwrap_or_default();
            assert_eq!(found, name, "{address:#x}");
        }
    }

    #[test]
    fn addresses_that_the_kernel_hides_give_no_names() {
        let text = b"0000000000000000 T _text\n0000000000000000 t kvm_vcpu_ioctl\t[kvm]\n";
        assert!(KernelFunctions::parse(text.to_vec()).is_empty());
    }
}
