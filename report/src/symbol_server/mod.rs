//! A symbol server for the Firefox Profiler. It returns functions, inlined ones too, and source lines of addresses, the text of source
//! files, and the instructions of functions.
//!
//! Requests and answers are those of `/symbolicate/v5` (<https://tecken.readthedocs.io/en/latest/symbolication.html>, with the fields
//! `inlines` and `function_size` that the profiler reads besides, `src/profile-logic/mozilla-symbolication-api.ts` of its sources) and of
//! `/source/v1` and `/asm/v1` (<https://github.com/mstange/samply/blob/main/API.md>). Names come from the sources of reports:
//! the recording, debug files and the guest's files. Text comes from folders that the user names, and only of files that the debug
//! information has at the requested address.

mod asm;
mod symbolicate;
mod text;

use std::collections::HashMap;

use serde_json::json;

use crate::export::Library;
use crate::profile::Profile;
use crate::symbolize::{AddressLocation, CodeAddress, Resolved, SourceTexts};

/// Maximum size of a request in bytes: the addresses of a recording with some 300000 different ones.
pub const MAX_REQUEST: usize = 8 << 20;
/// Maximum number of locations of a file in processes that are tried for an address in it.
const MAX_LOCATIONS: usize = 64;

/// A request of the profiler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// Names of addresses: `/symbolicate/v5`.
    Symbolicate,
    /// The text of a source file: `/source/v1`.
    Source,
    /// The instructions of a function: `/asm/v1`.
    Assembly,
}

impl Request {
    /// The request with this path after the server's address.
    pub fn of_path(path: &str) -> Option<Self> {
        match path {
            "symbolicate/v5" => Some(Self::Symbolicate),
            "source/v1" => Some(Self::Source),
            "asm/v1" => Some(Self::Assembly),
            _ => None,
        }
    }
}

/// Why a request isn't answered.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    /// It isn't valid in the protocol.
    #[error("The request cannot be read: {0}")]
    Malformed(#[from] serde_json::Error),
    /// It has too many addresses.
    #[error("The request has more than {0} addresses")]
    TooMany(usize),
    /// Its answer would be too long.
    #[error("The answer would have more than {0} bytes")]
    TooLong(u64),
    /// The recording has no such file.
    #[error("The recording has no library with this name and debug id")]
    NoLibrary,
    /// The debug information doesn't name the file at this address.
    #[error("The code at this address has no lines in this file")]
    NotNamed,
    /// An address or a size isn't a valid number.
    #[error("An address or a size is not a hexadecimal number of 32 bits")]
    NotANumber,
    /// The library's code isn't available.
    #[error(
        "There is no code for this address in --vmlinux or in a file of --sysroot with the recorded build id"
    )]
    NoCode,
    /// The file isn't available.
    #[error("The source file is in none of the folders of --sysroot and --sources, or is too long")]
    NoSource,
}

/// A location of a library in a process. The distance between addresses in the library and in the process is constant.
#[derive(Clone, Copy, Debug)]
struct LibraryLocation {
    asked: CodeAddress,
    /// The address in the process less that in the library, modulo 2^64.
    bias: u64,
}

/// The libraries of a recording, by name and debug id.
#[derive(Debug)]
pub struct SymbolServer {
    locations: HashMap<String, HashMap<String, Vec<LibraryLocation>>>,
    /// The debug ids of libraries, by name and code id.
    code_ids: HashMap<(String, String), String>,
    sources: SourceTexts,
}

impl SymbolServer {
    /// A server for the recording of `profile`, with the source files of `sources`.
    pub fn new(profile: &Profile, sources: SourceTexts) -> Self {
        let mut server = Self {
            locations: HashMap::new(),
            code_ids: HashMap::new(),
            sources,
        };
        for frame in profile.stacks().flat_map(|stack| profile.frames(stack)) {
            // Inlined functions are at the place of the function that has their code.
            if !frame.is_inlined
                && let Some((library, address)) = Library::at(&frame)
            {
                server.add(&library, frame.asked(), address);
            }
        }
        server
    }

    fn add(&mut self, library: &Library<'_>, asked: CodeAddress, address: u32) {
        let bias = asked.address.wrapping_sub(address.into());
        let id = library.breakpad_id();
        if let Some(code_id) = library.code_id() {
            let code = (library.name().to_owned(), code_id.to_ascii_lowercase());
            self.code_ids.entry(code).or_insert_with(|| id.clone());
        }
        let ids = self.locations.entry(library.name().to_owned()).or_default();
        let locations = ids.entry(id).or_default();
        let is_known = |location: &LibraryLocation| {
            location.bias == bias && location.asked.mappings == asked.mappings
        };
        if locations.len() < MAX_LOCATIONS && !locations.iter().any(is_known) {
            locations.push(LibraryLocation { asked, bias });
        }
    }

    /// The answer to a request: a JSON document, which has an `error` if the request can't be answered.
    pub fn answer(&self, profile: &Profile, request: Request, body: &[u8]) -> Vec<u8> {
        let answer = match request {
            Request::Symbolicate => symbolicate::answer(self, profile, body),
            Request::Source => text::answer(self, profile, body),
            Request::Assembly => asm::answer(self, profile, body),
        };
        answer.unwrap_or_else(|error| {
            let text = json!({ "error": error.to_string() });
            text.to_string().into_bytes()
        })
    }

    /// The locations of a library.
    fn library(&self, name: &str, id: &str) -> Option<&[LibraryLocation]> {
        let ids = self.locations.get(name)?;
        // Breakpad's form has capital letters, other forms have small ones.
        let locations = ids.get(&id.to_ascii_uppercase())?;
        Some(locations)
    }

    /// The locations of a library with this code id.
    fn library_by_code(&self, name: &str, id: &str) -> Option<&[LibraryLocation]> {
        let code = (name.to_owned(), id.to_ascii_lowercase());
        self.library(name, self.code_ids.get(&code)?)
    }
}

/// The functions at `address` of the library with these `locations`.
fn resolve(profile: &Profile, locations: &[LibraryLocation], address: u32) -> Option<Resolved> {
    let there = there(profile, locations, address)?;
    Some(profile.resolver.resolve(there))
}

/// `address` of the library that is at `locations`, in a process that has it there.
fn there(profile: &Profile, locations: &[LibraryLocation], address: u32) -> Option<CodeAddress> {
    let tables = profile.resolver.tables();
    let locate = |asked: CodeAddress| tables.locate(asked.mappings, asked.address, asked.is_kernel);
    locations.iter().find_map(|location| {
        let there = CodeAddress {
            address: location.bias.wrapping_add(address.into()),
            ..location.asked
        };
        let is_same = match (locate(location.asked), locate(there)) {
            (AddressLocation::Mapping(one), AddressLocation::Mapping(other)) => {
                one.file == other.file && one.binary == other.binary
            }
            (AddressLocation::Mapping(_), _) | (_, AddressLocation::Mapping(_)) => false,
            _ => true,
        };
        is_same.then_some(there)
    })
}
