use proptest::prelude::*;

use super::*;
use kvmprof_introspection_fixtures::kallsyms::{Layout, kallsyms};
use kvmprof_introspection_fixtures::kernel::TEXT;

const START: u64 = TEXT + 0x1_0000;
const INIT_TASK: u64 = TEXT + 0x5_0000;

/// The table in `image`, if it gives `init_task` the address `address`.
fn find_with(image: &[u8], address: u64) -> Option<Symbols> {
    let anchor = [Anchor {
        name: "init_task",
        fits: &|found| found == address,
    }];
    find(
        Stretch {
            address: START,
            data: image,
        },
        &anchor,
        &mut Budget::new(),
    )
}

fn symbols(layout: Layout) -> Vec<(u64, char, String)> {
    let mut symbols = vec![
        (TEXT, 'T', "_text".to_owned()),
        (INIT_TASK, 'D', "init_task".to_owned()),
        (TEXT + 0x4_0000, 't', "x".repeat(400)),
    ];
    if !matches!(layout, Layout::Relative615 | Layout::Relative70) {
        symbols.push((0, 'A', "fixed_percpu_data".to_owned()));
        symbols.push((0x1_fb80, 'A', "current_task".to_owned()));
    }
    for number in 0..1000 {
        symbols.push((TEXT + 0x100 + number * 16, 't', format!("filler_{number}")));
    }
    symbols
}

/// An image that holds a table of `layout`.
fn image(layout: Layout) -> Vec<u8> {
    let symbols = symbols(layout);
    let symbols: Vec<_> = symbols
        .iter()
        .map(|(address, kind, name)| (*address, *kind, name.as_str()))
        .collect();
    let mut image = vec![0xcc; 64];
    image.extend(kallsyms(layout, &symbols, START + 64));
    image.extend([0xcc; 64]);
    image
}

#[test]
fn reads_every_layout() {
    for layout in Layout::ALL {
        let image = image(layout);
        let found = find_with(&image, INIT_TASK).unwrap_or_else(|| panic!("{layout:?}"));
        let expected = symbols(layout);
        assert_eq!(found.len(), expected.len(), "{layout:?}");
        for (address, _, name) in expected {
            assert_eq!(found.address_of(&name), Some(address), "{layout:?}: {name}");
        }
        assert_eq!(found.function_at(TEXT + 0x104), Some(("filler_0", 4)));
    }
}

#[test]
fn a_table_with_a_wrong_anchor_is_rejected() {
    for layout in Layout::ALL {
        assert!(find_with(&image(layout), INIT_TASK + 16).is_none());
    }
}

#[test]
fn a_search_ends_with_its_budget() {
    let image = image(Layout::Relative64);
    let stretch = Stretch {
        address: START,
        data: &image,
    };
    let anchor = [Anchor {
        name: "init_task",
        fits: &|found| found == INIT_TASK,
    }];
    let mut budget = Budget::new();
    assert!(find(stretch, &anchor, &mut budget).is_some());
    let Budget(left) = budget;
    let needed = (256 << 20) - left;
    // Decoding the names takes that much alone.
    assert!((10_000..100_000).contains(&needed), "{needed}");
    for budget in [1, needed / 2, needed] {
        assert!(find(stretch, &anchor, &mut Budget(budget)).is_none());
    }
    assert!(find(stretch, &anchor, &mut Budget(needed + 1)).is_some());
}

#[test]
fn digits_alone_are_not_taken_for_a_table() {
    let mut data = vec![0; 4096];
    for digit in 0..10 {
        data[100 + digit * 2] = b'0' + u8::try_from(digit).unwrap();
    }
    assert!(find_with(&data, INIT_TASK).is_none());
}

proptest! {
    #[test]
    fn damage_gives_nothing_or_symbols(
        which in 0..Layout::ALL.len(),
        flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
        cut in any::<prop::sample::Index>(),
        cuts in any::<bool>(),
    ) {
        let mut image = image(Layout::ALL[which]);
        for (index, value) in flips {
            let index = index.index(image.len());
            image[index] = value;
        }
        if cuts {
            image.truncate(cut.index(image.len()));
        }
        if let Some(found) = find_with(&image, INIT_TASK) {
            prop_assert!(!found.is_empty());
            found.address_of("_text");
            found.function_at(TEXT + 0x123);
        }
    }
}
