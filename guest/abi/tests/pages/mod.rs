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

/// The dumps of a page by name.
pub fn dumps(page: &str) -> BTreeMap<&str, Vec<u8>> {
    let mut all = BTreeMap::new();
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        let Some(name) = line.strip_prefix("```hexdump ") else {
            continue;
        };
        let bytes = lines
            .by_ref()
            .take_while(|line| *line != "```")
            .flat_map(|line| line.split('#').next().unwrap().split_whitespace())
            .map(|byte| u8::from_str_radix(byte, 16).unwrap())
            .collect();
        assert_eq!(all.insert(name, bytes), None, "{name} is there twice");
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

/// Checks that the page has a row for each command of the device, with the name in these marks, and for each of these errnos.
fn says_numbers(page: &str, device: u16, mark: &str, errnos: &[Errno]) {
    for command in of_device(device) {
        let (name, number) = (command.name, command.number);
        says(page, &format!("| {mark}{name}{mark} | {number:#06x} |"));
    }
    for errno in errnos {
        let (name, _) = errno.describe().unwrap();
        says(page, &format!("| {} | {name} |", errno.0));
    }
}

/// Checks that the page has `text`, as it is or with its line broken anywhere.
fn says(page: &str, text: &str) {
    let words: Vec<_> = page.split_whitespace().collect();
    let is_there = page.contains(text) || words.join(" ").contains(text);
    assert!(is_there, "the page doesn't say {text:?}");
}
