//! Functions of code that programs generate at run time: the files `/tmp/perf-PID.map`
//! (`tools/perf/Documentation/jit-interface.txt` of the Linux sources).

use super::functions::FunctionTable;

/// Maximum number of functions of a file.
const MAX_FUNCTIONS: usize = 1 << 20;

/// Reads `text`: lines of hexadecimal address, hexadecimal length and name. Other lines are ignored. False if there are more functions
/// than are read.
pub fn parse(text: &str) -> (FunctionTable, bool) {
    let mut functions = text.lines().filter_map(|line| {
        let mut words = line.splitn(3, ' ');
        let mut number = || {
            let word = words.next()?;
            u64::from_str_radix(word.strip_prefix("0x").unwrap_or(word), 16).ok()
        };
        let (address, length) = (number()?, number()?);
        Some((address, length, words.next()?))
    });
    let table = FunctionTable::new(functions.by_ref().take(MAX_FUNCTIONS));
    (table, functions.next().is_none())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_may_have_spaces() {
        let (table, is_whole) = parse("7f00 20 LazyCompile:~f a.js:1\n0x7f40 8 py::g\nnonsense\n");
        assert_eq!(table.find(0x7f1f), Some(("LazyCompile:~f a.js:1", 0x7f00)));
        assert_eq!(table.find(0x7f41), Some(("py::g", 0x7f40)));
        assert_eq!(table.find(0x7f30), None);
        assert!(is_whole);
        let (_, is_whole) = parse(&"7f00 20 f\n".repeat(MAX_FUNCTIONS + 1));
        assert!(!is_whole);
    }
}
