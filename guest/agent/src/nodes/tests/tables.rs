//! Tables that are larger than a piece of the kernel's.

use super::*;
use crate::cuse::protocol::LAST_FRAGMENT;

fn whole(data: &[u8]) -> InspectionResult {
    Some(Ok(data.to_vec()))
}

/// A table of more than one fragment.
fn table() -> Vec<u8> {
    (0..2 * MAX_FRAGMENT + 40)
        .map(|index| u8::try_from(index % 251).unwrap())
        .collect()
}

#[test]
fn a_table_is_written_completely_with_its_first_fragment() {
    let (mut bench, file) = Bench::opened(PRF);
    let table = table();
    let first = bench.write_of(file, &table[..MAX_FRAGMENT], whole(&table));
    bench.takes_write(&table);
    bench.answered(PRF, &protocol::written(first, MAX_FRAGMENT));
    let rest = [
        (MAX_FRAGMENT, 2 * MAX_FRAGMENT),
        (2 * MAX_FRAGMENT, table.len()),
    ];
    for (begin, end) in rest {
        let next = bench.write(file, begin as u64, &table[begin..end]);
        bench.answered(PRF, &protocol::written(next, end - begin));
    }
    bench.nothing_more();
    // Nothing of that call is left.
    let stray = bench.write(file, table.len() as u64, &[1]);
    bench.answered(PRF, &protocol::failed(stray, Errno::EIO));
}

#[test]
fn a_table_is_refused_with_its_first_fragment() {
    let (mut bench, file) = Bench::opened(PRF);
    let table = table();
    let fragment = &table[..MAX_FRAGMENT];

    let unique = bench.write_of(file, fragment, whole(&table));
    let (tag, _) = bench.sent_kind();
    bench.refuse(tag, Kind::Write, Errno::EINVAL);
    bench.answered(PRF, &protocol::failed(unique, Errno::EINVAL));

    for errno in [Errno::ENOSPC, Errno::EFAULT] {
        let unique = bench.write_of(file, fragment, Some(Err(errno)));
        bench.answered(PRF, &protocol::failed(unique, errno));
    }
    bench.nothing_more();
}

#[test]
fn a_table_of_unknown_length_is_staged() {
    let (mut bench, file) = Bench::opened(PRF);
    let table = table();
    // The last piece is recognised, because it is short.
    for (begin, end) in [(0, MAX_FRAGMENT), (MAX_FRAGMENT, 2 * MAX_FRAGMENT)] {
        let unique = bench.write(file, begin as u64, &table[begin..end]);
        if begin == 0 {
            bench.seen(None);
        }
        bench.answered(PRF, &protocol::written(unique, end - begin));
    }
    bench.nothing_more();
    let last = bench.write(file, 2 * MAX_FRAGMENT as u64, &table[2 * MAX_FRAGMENT..]);
    bench.takes_write(&table);
    bench.answered(PRF, &protocol::written(last, 40));

    // The last piece isn't recognised: the table is written before the next operation.
    let whole = &table[..MAX_FRAGMENT];
    bench.write_of(file, whole, None);
    bench.environment.answers.clear();
    bench.nothing_more();
    let unique = bench.ask(PRF, Operation::Release { file });
    bench.takes_write(whole);
    let (tag, kind) = bench.sent_kind();
    assert_eq!(kind, Kind::Close);
    assert!(bench.reply(tag, Reply::Close));
    bench.answered(PRF, &protocol::released(unique));
    bench.nothing_more();
}

#[test]
fn staging_is_bounded_and_only_for_incomplete_tables() {
    let (mut bench, file) = Bench::opened(PRF);
    let short = vec![3; LAST_FRAGMENT];
    let unique = bench.write_of(file, &short, None);
    bench.takes_write(&short);
    bench.answered(PRF, &protocol::written(unique, LAST_FRAGMENT));

    // Memory that differs from the piece that the kernel passed isn't that of this call.
    let fragment = vec![9; MAX_FRAGMENT];
    let other = vec![8; 2 * MAX_FRAGMENT];
    let mut offset = 0;
    loop {
        let unique = bench.write(file, offset, &fragment);
        if offset == 0 {
            bench.seen(whole(&other));
        }
        let (_, answer) = bench.environment.answers.pop_front().unwrap();
        if answer != protocol::written(unique, MAX_FRAGMENT) {
            assert_eq!(answer, protocol::failed(unique, Errno::ENOSPC));
            break;
        }
        offset += MAX_FRAGMENT as u64;
        assert!(offset <= MAX_DATA as u64);
    }
    bench.nothing_more();
}

#[test]
fn a_read_of_a_table_is_one_snapshot() {
    let (mut bench, file) = Bench::opened(PRF);
    let table = table();
    let first = bench.read(PRF, file, 0, MAX_FRAGMENT);
    let (tag, (limit, _)) = bench.sent_read();
    assert_eq!(usize::try_from(limit).unwrap(), MAX_DATA);
    let data = &table[..2 * MAX_FRAGMENT];
    assert!(bench.reply(tag, Reply::Read { data }));
    bench.answered(PRF, &protocol::read(first, &table[..MAX_FRAGMENT]));
    let next = bench.read(PRF, file, MAX_FRAGMENT as u64, MAX_FRAGMENT);
    bench.answered(PRF, &protocol::read(next, &data[MAX_FRAGMENT..]));
    // The call is over, and gets nothing of another table.
    let end = bench.read(PRF, file, 2 * MAX_FRAGMENT as u64, 8);
    bench.answered(PRF, &protocol::read(end, &[]));
    bench.nothing_more();

    // A short read requests no more than its size, and ends an earlier call whose rest wasn't read.
    bench.read(PRF, file, 0, MAX_FRAGMENT);
    bench.succeeds(Reply::Read { data });
    bench.read(PRF, file, 0, 11);
    let (tag, (limit, _)) = bench.sent_read();
    assert_eq!(limit, 11);
    let data = &table[..11];
    assert!(bench.reply(tag, Reply::Read { data }));
    bench.environment.answers.clear();
    let next = bench.read(PRF, file, MAX_FRAGMENT as u64, MAX_FRAGMENT);
    bench.answered(PRF, &protocol::read(next, &[]));
}
