use std::ops::{ControlFlow, Range};

use super::super::{BinaryInfo, Mapping, SamplesEncoder, header};
use super::*;
use crate::Sample;

fn recording() -> (Vec<u8>, Vec<usize>) {
    let mut bytes = header().to_vec();
    let mut ends = Vec::new();
    let mut add = |block: Option<Vec<u8>>| {
        bytes.extend(block.unwrap());
        ends.push(bytes.len());
    };
    add(RecordingInfo::default().to_block());
    add(Block::encode(Kind::Symbols, b"ffffffff81000000 T _text\n"));
    let mut account = Account::default();
    for count in 1..4 {
        let mut encoder = SamplesEncoder::default();
        for idle in 0..count {
            let ticks = Ticks {
                idle,
                ..Sample::default().into()
            };
            encoder.push(&ticks, &[]);
            account.enter(&ticks);
        }
        add(Block::encode(Kind::Samples, &encoder.take().bytes));
    }
    add(account.to_block());
    (bytes, ends)
}

fn read(bytes: &[u8]) -> Result<Contents, FileError> {
    Recording::of_bytes(Path::new("test"), bytes.to_vec().into())?.read(|_, _| {})
}

#[test]
fn a_complete_file_has_everything() {
    let (bytes, _) = recording();
    let contents = read(&bytes).unwrap();
    assert_eq!(contents.closed, Some(contents.account));
    assert!(contents.account.balances());
    assert_eq!(contents.cut_off, 0);
    assert_eq!(contents.symbols, "ffffffff81000000 T _text\n");
}

/// Truncated, or with another byte, or with zeros from there on.
#[test]
fn a_file_damaged_anywhere_opens_up_to_there() {
    let (bytes, ends) = recording();
    let samples = [0, 0, 1, 3, 6, 6];
    for place in 0..bytes.len() {
        let mut changed = bytes.clone();
        changed[place] ^= 0x80;
        let mut zeroed = bytes.clone();
        zeroed[place..].fill(0);
        for damaged in [&bytes[..place], &changed, &zeroed] {
            let is_same = |part: Range<usize>| damaged.get(part.clone()) == bytes.get(part);
            let whole = ends.iter().filter(|end| is_same(HEADER..**end)).count();
            // The header ends with bytes that mean nothing.
            if is_same(0..12) && whole == ends.len() {
                continue;
            }
            match read(damaged) {
                Ok(contents) => {
                    assert_eq!(contents.account.samples, samples[whole - 1]);
                    assert_eq!(contents.closed, None);
                    assert_eq!(contents.cut_off, damaged.len() - ends[whole - 1]);
                    assert!(contents.account.balances());
                }
                Err(FileError::NotARecording(_) | FileError::UnknownVersion { .. }) => {
                    assert!(place < HEADER);
                }
                Err(FileError::Empty(_)) => assert!(is_same(0..12) && whole == 0),
                Err(error) => panic!("{place}: {error}"),
            }
        }
    }
}

#[test]
fn resets_and_pauses_are_in_order() {
    let (mut bytes, _) = recording();
    let pauses = [(6, true), (8, false)].map(|(time, paused)| PauseInfo { time, paused });
    let resets = [7, 9].map(|time| ResetInfo { time });
    for (pause, reset) in pauses.iter().zip(&resets) {
        bytes.extend(pause.to_block().unwrap());
        bytes.extend(reset.to_block().unwrap());
    }
    let contents = read(&bytes).unwrap();
    assert_eq!(contents.resets, resets);
    assert_eq!(contents.pauses, pauses);
}

#[test]
fn symbols_mappings_and_files_add_up() {
    let (mut bytes, _) = recording();
    bytes.extend(Block::encode(Kind::Symbols, b"ffffffffc0000000 t poll\t[net]\n").unwrap());
    let kernel = KernelInfo {
        release: "6.12.0".to_owned(),
        build_id: "ab".to_owned(),
        slide: 0x1000_0000,
        gaps: vec!["No perf maps: unknown".to_owned()],
    };
    bytes.extend(kernel.to_block().unwrap());
    for time in [3, 9] {
        let mappings = ProcessMappings {
            address_space: 0x2000,
            pid: 7,
            name: "server".to_owned(),
            time,
            mappings: vec![Mapping {
                binary: Some(4),
                ..Mapping::default()
            }],
            ..ProcessMappings::default()
        };
        bytes.extend(mappings.to_block().unwrap());
    }
    let info = BinaryInfo {
        id: 4,
        ..BinaryInfo::default()
    };
    bytes.extend(info.to_block(&[]).unwrap());
    let contents = read(&bytes).unwrap();
    assert_eq!(contents.symbols.lines().count(), 2);
    assert_eq!(contents.kernel, Some(kernel));
    let times: Vec<u64> = contents.mappings.iter().map(|set| set.time).collect();
    assert_eq!(times, [3, 9]);
    assert_eq!(contents.binaries[0].info, info);
    assert_eq!(contents.left_out, 0);
}

#[test]
fn tables_beyond_the_memory_limit_are_omitted() {
    let (mut bytes, _) = recording();
    // Incompressible lines.
    let mut state = 1_u32;
    let letters = std::iter::repeat_with(|| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        [state.to_be_bytes()[0] & 0x7f, b'\n']
    });
    let lines: Vec<u8> = letters.take(2 << 20).flatten().collect();
    let long = Block::encode(Kind::Symbols, &lines).unwrap();
    bytes.extend(&long);
    bytes.extend(&long);
    bytes.extend(Block::encode(Kind::Symbols, b"1 T a\n").unwrap());
    let contents = read(&bytes).unwrap();
    assert_eq!(contents.symbol_blocks().last(), Some("1 T a\n"));
    assert_eq!(contents.symbol_blocks().count(), 3);
    assert_eq!(contents.left_out, 1);
}

#[test]
fn a_small_file_that_unpacks_to_much_is_refused() {
    for kind in [Kind::Symbols, Kind::Mappings, Kind::Binary, Kind::Samples] {
        let (mut bytes, _) = recording();
        let offset = bytes.len() as u64;
        bytes.extend(Block::encode(kind, &vec![0; 60 << 20]).unwrap());
        assert!(bytes.len() < 12_000);
        let Err(FileError::Damaged {
            offset: at, what, ..
        }) = read(&bytes)
        else {
            panic!("{kind:?} is read");
        };
        assert!(
            at == offset && what.contains("far more than recordings do"),
            "{what}"
        );
    }
    // Also in many small blocks.
    let (mut bytes, _) = recording();
    for _ in 0..100 {
        bytes.extend(Block::encode(Kind::Symbols, &[b'\n'; 512 << 10]).unwrap());
    }
    assert!(matches!(read(&bytes), Err(FileError::Damaged { .. })));
}

/// Interrupts after some blocks.
struct InterruptingObserver(Cell<u32>);

impl Observer for InterruptingObserver {
    fn advance(&self, done: u64, whole: u64) -> ControlFlow<()> {
        assert!(done <= whole);
        let Some(rest) = self.0.get().checked_sub(1) else {
            return ControlFlow::Break(());
        };
        self.0.set(rest);
        ControlFlow::Continue(())
    }
}

#[test]
fn blocks_read_before_an_interrupt_count() {
    let (bytes, ends) = recording();
    let length = bytes.len();
    let recording = Recording::of_bytes(Path::new("test"), bytes.into()).unwrap();
    let impatient = InterruptingObserver(Cell::new(3));
    let contents = recording.read_observed(&impatient, |_, _| {}).unwrap();
    assert_eq!(contents.account.samples, 3);
    assert_eq!((contents.unread, contents.cut_off), (length - ends[3], 0));
    assert_eq!(contents.closed, None);
    // Reading it again gives the same.
    let again = recording.read(|_, _| {}).unwrap();
    assert_eq!(again.account, contents.account);
    assert_eq!(again.unread, contents.unread);
}

#[test]
fn contents_are_read_without_samples() {
    let (bytes, _) = recording();
    let recording = Recording::of_bytes(Path::new("test"), bytes.into()).unwrap();
    let contents = recording.contents().unwrap();
    assert_eq!(contents.symbols, "ffffffff81000000 T _text\n");
    assert_eq!(contents.account, Account::default());
    assert_eq!(contents.closed.unwrap().ticks, 10);
    assert_eq!(contents.cut_off, 0);
}

#[test]
fn later_formats_are_refused() {
    let (mut bytes, _) = recording();
    bytes[8] = 2;
    let error = read(&bytes).unwrap_err();
    assert!(matches!(
        error,
        FileError::UnknownVersion { version: 2, .. }
    ));
}

#[test]
fn a_complete_block_with_invalid_contents_is_an_error() {
    let mut bytes = header().to_vec();
    bytes.extend(Block::encode(Kind::Samples, &[0xff; 9]).unwrap());
    let error = read(&bytes).unwrap_err();
    assert!(matches!(error, FileError::Damaged { offset: 16, .. }));
}
