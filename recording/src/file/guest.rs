//! Data about the guest in a recording: mappings of files, their functions, and the
//! kernel.

use std::collections::BTreeMap;
use std::fmt::Write;

use serde::{Deserialize, Serialize};

use super::block::{Block, Kind};
use super::piece::json_and_text;

/// The executable mappings of one address space, valid from `time` until the next ones of the same address space.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ProcessMappings {
    /// The physical address of the page tables: that of samples, but under KPTI that of the kernel's half
    /// ([`kernels_half`]). In earlier recordings bit 12 is always cleared.
    pub address_space: u64,
    /// The process that was seen in it.
    pub pid: i32,
    /// The name of the process's main thread at that time; empty when unknown.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// The path, in the guest, of the process's perf map, which names the code that it generates. In the root directory of the guest's process 1 it is
    /// `/tmp/perf-PID.map`; a process with another root directory, or with another id in its own pid namespace, has it at `/proc/PID/root/tmp/perf-OWN.map`. Empty when
    /// unknown, or when there is no mapping for such code.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub perf_map: String,
    /// The time from which they are valid, in ns of CLOCK_MONOTONIC.
    pub time: u64,
    /// The mappings.
    pub mappings: Vec<Mapping>,
}

/// A stretch of executable memory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default)]
pub struct Mapping {
    /// Its first address.
    pub begin: u64,
    /// The first address after it.
    pub end: u64,
    /// The offset in the file of the byte at `begin`.
    pub offset: u64,
    /// The file's path in the guest, or a word in brackets if it isn't a file: `[vdso]`, `[anon]`.
    pub file: String,
    /// [`BinaryInfo::id`] of the file; the block may come later in the recording.
    pub binary: Option<u32>,
}

/// Labels of a process, valid from `time` until the next ones of the same process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ProcessLabels {
    /// The process.
    pub pid: i32,
    /// The time from which they are valid, in ns of CLOCK_MONOTONIC.
    pub time: u64,
    /// Their values by their keys.
    pub labels: BTreeMap<String, String>,
}

impl ProcessLabels {
    /// The block for them. `None` when it would be too long.
    pub fn to_block(&self) -> Option<Vec<u8>> {
        Block::encode(Kind::Labels, &serde_json::to_vec(self).ok()?)
    }
}

/// A file that code was executed from.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct BinaryInfo {
    /// The id by which mappings refer to it.
    pub id: u32,
    /// Its path in the guest.
    pub file: String,
    /// Its build id in hexadecimal; empty if it has none.
    pub build_id: String,
    /// Its executable segments.
    pub segments: Vec<Segment>,
    /// The CRC-32 of its code ([`crate::elf::Identity::code_crc32`]), which tells builds without a build id apart.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code_crc32: Option<u32>,
    /// The source that it was read from: `initrd`, `page cache`, `disk`, `sysroot`, `guest memory`.
    pub source: String,
}

/// An executable segment of an ELF file (`PT_LOAD` with `PF_X`, elf(5)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Segment {
    /// Its offset in the file, in bytes.
    pub offset: u64,
    /// Its virtual address in the file's headers.
    pub address: u64,
    /// Its size in the file, in bytes.
    pub length: u64,
}

/// The guest's kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct KernelInfo {
    /// Its release, as `uname -r` prints it.
    pub release: String,
    /// Its build id in hexadecimal; empty if it has none.
    pub build_id: String,
    /// How many bytes above its link addresses it runs (KASLR), modulo 2^64.
    pub slide: u64,
    /// What isn't known of it, and why: a sentence each.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub gaps: Vec<String>,
}

/// A function of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BinaryFunction {
    /// Its first address, by the addresses of the file.
    pub address: u64,
    /// Its length in bytes; 0 when the file doesn't have it.
    pub length: u64,
    /// Its name as the file has it; empty when only its start is known.
    pub name: String,
}

/// The block of a file and its functions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Binary {
    /// The properties of the file.
    pub info: BinaryInfo,
    /// Its functions, a line each: hexadecimal address, hexadecimal length, name.
    pub functions: String,
}

/// The physical address of the page tables in a sample's `address_space`.
pub fn page_tables(address_space: u64) -> u64 {
    address_space & !0xfff
}

/// The physical address of the kernel's half of the page tables in a sample's `address_space`, if the guest has KPTI: its two halves are adjacent and
/// differ in bit 12. Without KPTI the page next to one process's tables may be another one's.
pub fn kernels_half(address_space: u64) -> u64 {
    address_space & !0x1fff
}

impl ProcessMappings {
    /// The block for it. `None` when it would be too long.
    pub fn to_block(&self) -> Option<Vec<u8>> {
        Block::encode(Kind::Mappings, &serde_json::to_vec(self).ok()?)
    }
}

/// A restart of the guest. Later blocks about the kernel are about the one that started then.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ResetInfo {
    /// The time of the restart, in ns of CLOCK_MONOTONIC. Later samples belong to the system that started then.
    pub time: u64,
}

impl ResetInfo {
    /// The block of this restart.
    pub fn to_block(&self) -> Option<Vec<u8>> {
        Block::encode(Kind::Reset, &serde_json::to_vec(self).ok()?)
    }
}

/// A client has paused the guest, or let it continue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PauseInfo {
    /// When the client asked for it, in ns of CLOCK_MONOTONIC.
    pub time: u64,
    /// Whether the guest is paused from then on.
    pub paused: bool,
}

impl PauseInfo {
    /// The block for it.
    pub fn to_block(&self) -> Option<Vec<u8>> {
        Block::encode(Kind::Pause, &serde_json::to_vec(self).ok()?)
    }
}

impl KernelInfo {
    /// The block for it. `None` when it would be too long.
    pub fn to_block(&self) -> Option<Vec<u8>> {
        Block::encode(Kind::Kernel, &serde_json::to_vec(self).ok()?)
    }
}

impl BinaryInfo {
    /// The block for this file with `functions`. `None` when it would be too long.
    pub fn to_block(&self, functions: &[BinaryFunction]) -> Option<Vec<u8>> {
        let mut text = serde_json::to_string(self).ok()?;
        text.push('\n');
        for function in functions {
            let BinaryFunction {
                address,
                length,
                name,
            } = function;
            let name = name.replace(['\n', '\r'], "?");
            writeln!(text, "{address:x} {length:x} {name}").ok()?;
        }
        Block::encode(Kind::Binary, text.as_bytes())
    }
}

impl Binary {
    /// Reads a block's contents.
    pub(crate) fn decode(contents: Vec<u8>) -> Option<Self> {
        let (info, functions) = json_and_text(contents)?;
        Some(Self { info, functions })
    }

    /// Its functions. Lines of another form are passed over.
    pub fn functions(&self) -> impl Iterator<Item = (u64, u64, &str)> {
        self.functions.lines().filter_map(|line| {
            let mut words = line.splitn(3, ' ');
            let address = u64::from_str_radix(words.next()?, 16).ok()?;
            let length = u64::from_str_radix(words.next()?, 16).ok()?;
            Some((address, length, words.next().unwrap_or_default()))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_round_trip() {
        let info = BinaryInfo {
            id: 7,
            file: "/bin/a file".to_owned(),
            build_id: "00ff".to_owned(),
            segments: vec![Segment {
                offset: 0x1000,
                address: 0x40_1000,
                length: 0x2000,
            }],
            code_crc32: Some(7),
            source: "initrd".to_owned(),
        };
        let function = |address, length, name: &str| BinaryFunction {
            address,
            length,
            name: name.to_owned(),
        };
        let functions = [
            function(0x40_1000, 0x10, "operator new"),
            function(0x40_1020, 0, "a\nb"),
            function(u64::MAX, 1, ""),
        ];
        let block = Block::decode(&info.to_block(&functions).unwrap()).unwrap();
        let binary = Binary::decode(block.contents).unwrap();
        assert_eq!(binary.info, info);
        let (first, second) = ((0x40_1000, 0x10, "operator new"), (0x40_1020, 0, "a?b"));
        let functions: Vec<_> = binary.functions().collect();
        assert_eq!(functions, [first, second, (u64::MAX, 1, "")]);
    }

    #[test]
    fn kpti_page_tables_are_adjacent() {
        assert_eq!(page_tables(0x1234_7abc), 0x1234_7000);
        assert_eq!(kernels_half(0x1234_7abc), 0x1234_6000);
        assert_eq!(kernels_half(0x1234_6000), 0x1234_6000);
    }
}
