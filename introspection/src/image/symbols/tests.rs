use super::*;

fn symbols() -> Symbols {
    Symbols::from_elf(
        [
            (0x3000, "jiffies", false),
            (0x1000, "_text", true),
            (0x2000, "schedule", true),
            (0x2800, "twice", true),
            (0x2400, "twice", false),
        ]
        .into_iter(),
    )
}

/// A file of 1.6 MB can have 60,000 symbols that share a name of 1 MB. Copies of it would take 60 GB, and each look at it some minutes.
#[test]
fn names_that_symbols_share_take_a_bounded_amount_of_memory() {
    let long = "x".repeat(1_000_000);
    let symbols = Symbols::from_elf((0..100_000).map(|address| (address, long.as_str(), true)));
    assert_eq!(symbols.text.len(), MAX_NAMES_BYTES);
    // The others keep their addresses, so that no other function extends over them.
    assert_eq!(symbols.len(), 100_000);
    assert_eq!(symbols.function_at(99_999), None);
}

#[test]
fn a_name_is_cut_off_between_characters() {
    for before in MAX_NAME - 4..=MAX_NAME {
        let name = format!("{}\u{1f980}{}", "x".repeat(before), "y".repeat(MAX_NAME));
        let symbols = Symbols::from_elf([(0, name.as_str(), true)].into_iter());
        let kept = if before == MAX_NAME - 4 {
            MAX_NAME
        } else {
            before
        };
        assert_eq!(symbols.name_at(0), &name[..kept]);
    }
}

#[test]
fn symbols_complete_others() {
    let listed = [(0x2000, "schedule", true), (0x2900, "listed", true)];
    let both = Symbols::from_elf(listed.into_iter()).with_others(&symbols());
    assert_eq!(both.len(), 6);
    let names = ["listed", "schedule", "jiffies", "_text"];
    let addresses = [0x2900, 0x2000, 0x3000, 0x1000].map(Some);
    assert_eq!(both.addresses_of(names), addresses);
    assert_eq!(both.function_at(0x2901), Some(("listed", 1)));
}

#[test]
fn looks_up_by_name() {
    let symbols = symbols();
    assert_eq!(symbols.len(), 5);
    let names = ["schedule", "twice", "_text", "sched", "zzz"];
    let addresses = [Some(0x2000), Some(0x2400), Some(0x1000), None, None];
    assert_eq!(symbols.addresses_of(names), addresses);
    assert_eq!(names.map(|name| symbols.address_of(name)), addresses);
    let symbols = symbols.moved_down(0x2800, 0x500);
    let names = ["_text", "schedule", "jiffies"];
    let addresses = [Some(0x1000), Some(0x2000), Some(0x2b00)];
    assert_eq!(symbols.addresses_of(names), addresses);
    // The two symbols with the same name are swapped.
    assert_eq!(symbols.address_of("twice"), Some(0x2300));
    assert_eq!(symbols.function_at(0x2302), Some(("twice", 2)));
}

#[test]
fn looks_up_by_address() {
    let symbols = symbols();
    for (address, variable, function) in [
        (0xfff, None, None),
        (0x2010, None, Some(("schedule", 0x10))),
        // Data between functions isn't a part of the function before it.
        (0x2410, Some(("twice", 0x10)), None),
        (0x27ff, Some(("twice", 0x3ff)), None),
        (0x2800, None, Some(("twice", 0))),
        (0x3000, Some(("jiffies", 0)), None),
        (0x3018, Some(("jiffies", 0x18)), None),
    ] {
        assert_eq!(symbols.variable_at(address), variable, "{address:#x}");
        assert_eq!(symbols.function_at(address), function, "{address:#x}");
    }
    assert_eq!(symbols.address_after(0x2800), Some(0x3000));
    assert_eq!(symbols.address_after(0x3000), None);
    let functions: Vec<String> = symbols
        .functions()
        .map(|(address, kind, name)| format!("{address:x} {kind} {name}"))
        .collect();
    assert_eq!(
        functions,
        ["1000 t _text", "2000 t schedule", "2800 t twice"]
    );
}

/// A table of functions with sizes: address, size, name.
fn sized(functions: &[(u64, u64, &[u8])], code_ends: &[u64]) -> Symbols {
    let found = functions.iter().map(|(address, size, name)| FileSymbol {
        address: *address,
        name,
        kind: SymbolKind::Function,
        size: *size,
    });
    Symbols::from_table(found, code_ends.to_vec())
}

fn lines(symbols: &Symbols, end: u64) -> Vec<String> {
    let lines = symbols.lines(end);
    lines
        .map(|(address, kind, name)| format!("{address:x} {kind} {name}"))
        .collect()
}

#[test]
fn code_without_a_symbol_is_a_gap() {
    let symbols = sized(
        &[
            (0x1000, 0x20, b"first"),
            (0x1040, 0, b"label"),
            (0x1060, 0x10, "gr\u{f6}\u{df}e".as_bytes()),
            (0x1070, 0x10, b"operator new"),
            (0x1080, 0x10, b""),
            (0x1090, 0x10, b"\xff\n"),
            (0x10a0, 0, b"last"),
        ],
        &[0x10b0],
    );
    assert_eq!(
        lines(&symbols, u64::MAX),
        [
            "1000 t first",
            "1020 ? [end]",
            "1040 t label",
            "1060 t gr\u{f6}\u{df}e",
            "1070 t operator?new",
            "1080 ? [end]",
            "1090 t \u{fffd}?",
            "10a0 t last",
            "10b0 ? [end]",
        ]
    );
    let at = |address| symbols.function_at(address);
    assert_eq!(at(0x101f), Some(("first", 0x1f)));
    assert_eq!([at(0x1020), at(0x1080), at(0x10b0)], [None; 3]);
    assert_eq!(at(0x105f), Some(("label", 0x1f)));
    // Nothing is known beyond the end of the image.
    let short = lines(&symbols, 0x1068);
    assert_eq!(short[3..], ["1060 t gr\u{f6}\u{df}e", "1070 ? [end]"]);
}

#[test]
fn functions_without_sizes_end_at_data_and_at_the_end_of_code() {
    let symbols = Symbols::from_elf(
        [
            (0x1000, "schedule", true),
            (0x1400, "table", false),
            (0x2000, "last", true),
            (0x2100, "_etext", true),
            (0x3000, "_sinittext", true),
            (0x3000, "start", true),
            (0x3100, "_einittext", true),
        ]
        .into_iter(),
    );
    assert_eq!(
        lines(&symbols, 0x9000),
        [
            "1000 t schedule",
            "1400 ? [end]",
            "2000 t last",
            "2100 ? [end]",
            "3000 t _sinittext",
            "3000 t start",
            "3100 ? [end]",
            "9000 ? [end]",
        ]
    );
}
