//! Compares WIRE.md and the pages of the devices with the code: every dump with the encoder, every number with its constant.

mod pcs;
mod pmc;
mod prf;
mod profil;
mod recorder;
pub mod wire;

use std::collections::BTreeMap;

use kvmprof_abi::commands::of_device;
use kvmprof_abi::errno::Errno;
use kvmprof_abi::wire::{Reply, ReplyFrame, Request, RequestFrame};

/// The bytes of a field in a dump, two digits each.
fn field(digits: &str) -> Vec<u8> {
    assert!(digits.len().is_multiple_of(2), "{digits}");
    let pairs = (0..digits.len()).step_by(2).map(|at| &digits[at..at + 2]);
    pairs
        .map(|pair| u8::from_str_radix(pair, 16).unwrap())
        .collect()
}

/// The dumps of a page by name. A dump begins with its name, and goes on in lines that begin with blanks.
pub fn dumps(page: &str) -> BTreeMap<&str, Vec<u8>> {
    let mut all: BTreeMap<&str, Vec<u8>> = BTreeMap::new();
    let blocks = page.split("```hexdump\n").skip(1);
    let lines = blocks.flat_map(|block| block.split("```").next().unwrap().lines());
    let mut name = "";
    for line in lines {
        let mut words = line.split('#').next().unwrap().split_whitespace();
        if !line.starts_with(' ') {
            name = words.next().unwrap();
            assert_eq!(all.insert(name, Vec::new()), None, "{name} is there twice");
        }
        all.get_mut(name).unwrap().extend(words.flat_map(field));
    }
    all
}

pub fn request(tag: u32, request: Request<'_>) -> Vec<u8> {
    let frame = RequestFrame { tag, request };
    let mut bytes = vec![0; frame.encoded_length()];
    frame.encode(&mut bytes).unwrap();
    bytes
}

pub fn reply(frame: ReplyFrame<'_>) -> Vec<u8> {
    let mut bytes = vec![0; frame.encoded_length()];
    frame.encode(&mut bytes).unwrap();
    bytes
}

fn success(tag: u32, what: Reply<'_>) -> Vec<u8> {
    reply(ReplyFrame::success(tag, what))
}

#[track_caller]
fn compare(page: &str, expected: &[(&str, Vec<u8>)]) {
    let mut found = dumps(page);
    for (name, bytes) in expected {
        let dump = found.remove(name);
        assert_eq!(dump.as_ref(), Some(bytes), "{name} should be {bytes:02x?}");
    }
    assert!(found.is_empty(), "nothing to compare with: {found:?}");
}

/// Checks that the page has an item for each command of the device, and a line for each of these errnos.
fn says_numbers(page: &str, device: u16, errnos: &[Errno]) {
    for command in of_device(device) {
        let (name, number) = (command.name, command.number);
        says(page, &format!("- `{name}` {number:#06x}"));
    }
    for errno in errnos {
        let (name, _) = errno.describe().unwrap();
        says(page, &format!(" {} {name} ", errno.0));
    }
}

/// Checks that the page has `text`, as it is or with its line broken anywhere.
fn says(page: &str, text: &str) {
    let words: Vec<_> = page.split_whitespace().collect();
    let is_there = page.contains(text) || words.join(" ").contains(text);
    assert!(is_there, "the page doesn't say {text:?}");
}
