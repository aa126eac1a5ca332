//! The guest kernel's symbols, by address.

/// How far the last function may reach, in bytes: nothing says where it ends.
const LAST: u64 = 64 << 10;

/// Functions, by address.
#[derive(Debug, Default)]
pub struct Symbols {
    functions: Vec<(u64, String)>,
}

impl Symbols {
    /// Reads the form of `/proc/kallsyms`: lines of address, type letter and name. Lines of another form are
    /// passed over.
    pub fn parse(text: &str) -> Self {
        let mut functions: Vec<(u64, String)> = text
            .lines()
            .filter_map(|line| {
                let mut words = line.split_ascii_whitespace();
                let address = u64::from_str_radix(words.next()?, 16).ok()?;
                Some((address, words.nth(1)?.to_owned()))
            })
            .collect();
        functions.sort_by_key(|(address, _)| *address);
        Self { functions }
    }

    /// The function that `address` lies in.
    pub fn find(&self, address: u64) -> Option<&str> {
        self.find_with_offset(address).map(|(name, _)| name)
    }

    /// The function that `address` lies in, and how many bytes from its begin.
    pub fn find_with_offset(&self, address: u64) -> Option<(&str, u64)> {
        let after = self
            .functions
            .partition_point(|(begin, _)| *begin <= address);
        let (begin, name) = self.functions.get(after.checked_sub(1)?)?;
        let offset = address - begin;
        (after < self.functions.len() || offset < LAST).then_some((name, offset))
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.functions.len()
    }

    /// True when there is none.
    pub fn is_empty(&self) -> bool {
        self.functions.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_function_around_an_address() {
        let symbols =
            Symbols::parse("2000 t second\nnonsense\n1000 T first\n3000 t last [module]\n");
        assert_eq!(symbols.len(), 3);
        assert_eq!(symbols.find(0xfff), None);
        assert_eq!(symbols.find(0x1fff), Some("first"));
        assert_eq!(symbols.find(0x2000), Some("second"));
        assert_eq!(symbols.find(0x3000 + LAST - 1), Some("last"));
        assert_eq!(symbols.find(0x3000 + LAST), None);
    }
}
