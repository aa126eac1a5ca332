use super::*;

#[test]
fn finds_the_function_around_an_address() {
    let symbols = Symbols::parse("2000 t second\nnonsense\n1000 T first\n3000 t last [module]\n");
    assert_eq!(symbols.len(), 3);
    assert_eq!(symbols.find(0xfff), None);
    assert_eq!(symbols.find(0x1fff), Some("first"));
    assert_eq!(symbols.find(0x2000), Some("second"));
    assert_eq!(symbols.find(0x3000 + LAST - 1), Some("last"));
    assert_eq!(symbols.find(0x3000 + LAST), None);
    assert_eq!(symbols.address_of("second"), Some(0x2000));
    assert_eq!(symbols.address_of("last"), None);
}

#[test]
fn code_without_a_symbol_of_its_own_has_no_name() {
    let symbols = Symbols::parse(
        "1000 t weave\n1028 ? [end]\n1050 t turn\n1060 ? [end]\n\n\
         3000 t a\t[m]\n3010 ? [end]\t[m]\n3020 t b\t[m]\n3030 ? [end]\t[m]\n\n",
    );
    assert_eq!(symbols.len(), 4);
    let named = [0x1000, 0x1027, 0x1050, 0x105f, 0x300f, 0x302f];
    let names = named.map(|address| symbols.find(address));
    let expected = ["weave", "weave", "turn", "turn", "a", "b"];
    assert_eq!(names, expected.map(Some));
    let ends = [0x1028, 0x1060, 0x3010, 0x3030];
    let wanted = symbols.wanted(|_| true).into_iter();
    assert_eq!(wanted.map(|(_, end)| end).collect::<Vec<_>>(), ends);
    let gaps = ends.into_iter().chain([0x104f, 0x1_0fff, 0x301f, 0x1_2fff]);
    for gap in gaps {
        assert_eq!(symbols.locate(gap), None, "{gap:#x}");
    }
    // An end replaces a start, as any later symbol does.
    let mut symbols = Symbols::parse("1000 t old\n1020 t old2\n1040 ? [end]\n");
    symbols.add("1000 ? [end]\n1010 t new\n1040 ? [end]\n");
    let names = [0x1000, 0x1020].map(|address| symbols.find(address));
    assert_eq!(names, [None, Some("new")]);
}

#[test]
fn functions_know_their_module() {
    let symbols = Symbols::parse("1000 T a\n900000 t b\t[net]\n");
    let found = symbols.locate(0x90_0010).unwrap();
    assert_eq!((found.name, &**found.module), ("b", "[net]"));
    assert_eq!(found.offset, 16);
    assert_eq!(&**symbols.locate(0x1001).unwrap().module, KERNEL);
    // The kernel doesn't extend to its modules.
    assert_eq!(symbols.locate(0x80_0000), None);
}

#[test]
fn a_samples_time_selects_the_module() {
    let a = "since 100 0\n1000 t a1\t[a]\n1800 t a2\t[a]\n2000 ? [end]\t[a]\n\n";
    let b = "since 300 250\n1000 t b1\t[b]\n1900 ? [end]\t[b]\n\n";
    let mut symbols = Symbols::parse("500 T kernel\n540 ? [end]\n");
    symbols.add(a);
    // While one module is known, it has all of the samples: its first ones come before its symbols.
    assert_eq!(symbols.epoch(50), symbols.epoch(500));
    symbols.add(&format!("since 200 180\ngone 1000 2000\n{b}"));
    let at = |symbols: &Symbols, address, times: &[u64]| {
        let found = times
            .iter()
            .map(|time| symbols.locate_then(address, symbols.epoch(*time)));
        let name =
            |found: FunctionAt<'_>| format!("{}+{:x}{}", found.name, found.offset, found.module);
        let names = found.map(|found| found.map_or("-".to_owned(), name));
        names.collect::<Vec<_>>().join(" ")
    };
    // It was unloaded in between.
    let names = "a1+4[a] a1+4[a] a1+4[a] - -";
    assert_eq!(at(&symbols, 0x1004, &[0, 99, 180, 181, 199]), names);
    let names = "b1+4[b] b1+4[b] b1+4[b] b1+4[b]";
    assert_eq!(at(&symbols, 0x1004, &[200, 299, 300, u64::MAX]), names);
    let names = at(&symbols, 0x1fff, &[0, 180, 200, u64::MAX]);
    assert_eq!(names, "a2+7ff[a] a2+7ff[a] - -");
    let names = at(&symbols, 0x504, &[200, 300, u64::MAX]);
    assert_eq!(names, ["kernel+4[kernel]"; 3].join(" "));
    assert_eq!(symbols.find(0x1004), Some("b1"));
    assert!(symbols.locate_then(0x1004, Epoch::ANY).is_none());
    assert!(symbols.locate_then(0x504, Epoch::ANY).is_some());
    // The same functions again change nothing, and another module at once replaces them.
    symbols.add(&b.replace("300 250", "400 390"));
    symbols.add("since 600 500\n1000 t c\t[c]\n1900 ? [end]\t[c]\n\n");
    let names = at(&symbols, 0x1004, &[100, 395, 500, 501, 599, 600]);
    assert_eq!(names, "a1+4[a] b1+4[b] b1+4[b] - - c+4[c]");
    // A module that stays unloaded has its name until then.
    symbols.add("since 800 700\ngone 1000 1900\n");
    assert_eq!(at(&symbols, 0x1004, &[700, 800, 900]), "c+4[c] - -");
    assert_eq!(
        [0x1004, 0x504].map(|now| symbols.find(now)),
        [None, Some("kernel")]
    );
}

#[test]
fn endless_module_loads_take_bounded_memory() {
    let mut symbols = Symbols::default();
    let (mut now, mut last) = (0, String::new());
    for number in 0..5000 {
        now += 10;
        last = format!("m{number}");
        symbols.add(&format!(
            "since {now} {now}\n1000 t {last}\t[m]\n1010 ? [end]\t[m]\n\n"
        ));
    }
    let name = |time| {
        symbols
            .locate_then(0x1004, symbols.epoch(time))
            .map(|found| found.name)
    };
    assert_eq!(name(now), Some(&*last));
    assert_eq!(name(15), Some("m0"));
    // Beyond the limit, names are missing, and not wrong.
    assert_eq!(name(now - 5), None);
}

#[test]
fn lines_with_times_are_ignored_by_earlier_readers() {
    for line in ["since 200 100", "gone 1000 2000"] {
        assert_eq!(KernelSymbol::parse(line.as_bytes()), None, "{line}");
    }
    for wrong in "since 1,since x 2,gone 2000 1000,gone 1000,gone 1000 y".split(',') {
        let mut symbols = Symbols::parse("1000 t a\n");
        symbols.add(&format!("{wrong}\n"));
        assert_eq!(symbols.find(0x1004), Some("a"), "{wrong}");
    }
}

#[test]
fn the_gap_between_parts_of_a_module_is_not_in_it() {
    // b was loaded between the two parts of a, which was there first, and stays.
    let between = "3000 t b1\t[b]\n3800 t b2\t[b]\n\n";
    let around = "1000 t a1\t[a]\n1800 t a2\t[a]\n\n5000 t init_a\t[a]\n\n";
    for texts in [[between, around], [around, between]] {
        let mut symbols = Symbols::default();
        for text in texts {
            symbols.add(text);
        }
        assert_eq!(symbols.len(), 5, "{texts:?}");
        assert_eq!(symbols.find(0x3004), Some("b1"));
        assert_eq!(symbols.find(0x3ffc), Some("b2"));
    }
    // The last function of a doesn't extend over the gap to the other part.
    let mut symbols = Symbols::parse("1000 t a\t[a]\n\n90000 t init_a\t[a]\n\n");
    assert_eq!(symbols.find(0x1000 + LAST), None);
    // The first part was loaded again at a lower address, and replaces the previous one.
    symbols.add("90000 t c\t[c]\n\n800 t a\t[a]\n1800 t a2\t[a]\n");
    let names = [0x900, 0x1004, 0x1900, 0x9_0004].map(|address| symbols.find(address));
    assert_eq!(names, ["a", "a", "a2", "c"].map(Some));
}

/// The result equals one list of all functions, for any additions in any order.
#[test]
fn split_tables_equal_one_table() {
    // Knuth's MMIX generator.
    let mut random = 7_u64;
    let mut below = |end: u64| {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % end
    };
    for _ in 0..300 {
        let mut symbols = Symbols::default();
        let mut list: Vec<AddressedFunction> = Vec::new();
        for text in 0..5 {
            let mut lines = String::new();
            let mut taken = Vec::new();
            for number in 0..below(12) {
                let address = 0x1000 + 0x1800 * below(64);
                // The order of two at one address is unspecified.
                if taken.contains(&address) {
                    continue;
                }
                taken.push(address);
                let module = ["", "\t[a]", "\t[b]"][usize::try_from(below(3)).unwrap()];
                let end = ["", "\n"][usize::from(below(4) == 0)];
                lines += &format!("{address:x} t f{text}_{number}{module}\n{end}");
            }
            symbols.add(&lines);
            let added = placed(&lines, &mut HashMap::new());
            let runs = runs(&added);
            list.retain(|(begin, _)| !runs.iter().any(|run| run.contains(begin)));
            list.extend(added);
            list.sort_by_key(|(begin, _)| *begin);
        }
        assert_eq!(symbols.len(), list.len());
        for address in (0..0x80_000).step_by(0x800) {
            let after = list.partition_point(|(begin, _)| *begin <= address);
            let expected = after.checked_sub(1).and_then(|index| {
                let (begin, function) = &list[index];
                let next = list.get(after);
                let is_followed = !function.is_last
                    && next.is_some_and(|(_, next)| next.module == function.module);
                (is_followed || address - begin < LAST).then_some(&*function.name)
            });
            assert_eq!(symbols.find(address), expected, "{address:#x} {list:?}");
        }
    }
}

#[test]
fn kernels_share_common_symbols() {
    let text = |kernel: u64, module: u64| {
        let lines = |begin: u64, name: &str, module: &str| -> String {
            let line =
                |number: u64| format!("{:x} t {name}{number}{module}\n", begin + 16 * number);
            (0..100).map(line).collect()
        };
        lines(kernel, "kernel", "") + "\n" + &lines(module, "module", "\t[m]")
    };
    let one = Symbols::parse(&text(0xffff_ffff_8100_0000, 0xffff_ffff_c010_0000));
    let mut other = Symbols::parse(&text(0xffff_ffff_9a00_0000, 0xffff_ffff_c0a0_0000));
    assert_eq!(other.find(0xffff_ffff_9a00_0018), Some("kernel1"));
    assert_eq!(other.find(0xffff_ffff_c0a0_0018), Some("module1"));
    let are_shared = |other: &Symbols| -> Vec<bool> {
        let parts = one.parts.iter().zip(&other.parts);
        parts
            .map(|(one, other)| Arc::ptr_eq(&one.functions, &other.functions))
            .collect()
    };
    assert_eq!(are_shared(&other), [true, true]);
    // Later loads change nothing except what they replace.
    other.add("ffffffffc0a00000 t new\t[n]\nffffffffc0a00020 t new2\t[n]\n");
    assert_eq!(are_shared(&other), [true, false]);
    assert_eq!(other.find(0xffff_ffff_c0a0_0018), Some("new"));
}
