//! `/asm/v1`.

use serde::Deserialize;
use serde_json::json;

use super::{LibraryLocation, RequestError, SymbolServer, resolve, there};
use crate::profile::Profile;
use crate::symbolize::{Assembly, MAX_INSTRUCTION};

/// Maximum size of the code that is disassembled for a request, in bytes.
const MAX_CODE: usize = 256 << 10;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Body {
    name: Option<String>,
    code_id: Option<String>,
    debug_name: Option<String>,
    debug_id: Option<String>,
    start_address: String,
    size: String,
    #[serde(default)]
    continue_until_function_end: bool,
}

/// The answer to the request with this `body`: the instructions from an address of a library on.
pub fn answer(
    server: &SymbolServer,
    profile: &Profile,
    body: &[u8],
) -> Result<Vec<u8>, RequestError> {
    let body: Body = serde_json::from_slice(body)?;
    let locations = body.library(server).ok_or(RequestError::NoLibrary)?;
    let start = number(&body.start_address)?;
    let size = usize::try_from(number(&body.size)?).unwrap_or(usize::MAX);
    let asked = there(profile, locations, start).ok_or(RequestError::NoCode)?;
    let wanted = if body.continue_until_function_end {
        MAX_CODE
    } else {
        // The last instruction begins within the size.
        size.saturating_add(MAX_INSTRUCTION).min(MAX_CODE)
    };
    let code = profile.resolver.code(asked, wanted);
    let code = code.ok_or(RequestError::NoCode)?;
    let function_at = |address: u64| {
        let address = u32::try_from(address).ok()?;
        resolve(profile, locations, address)
    };
    let assembly = Assembly::new(start.into(), function_at);
    let (size, instructions) = assembly.instructions(&code, size, body.continue_until_function_end);
    let answer = json!({
        "startAddress": format!("{start:#x}"),
        "size": format!("{size:#x}"),
        "arch": "x86_64",
        // The kinds of the strings of each instruction.
        "syntax": ["Intel"],
        // Each one's distance from the start, in bytes, and its text.
        "instructions": instructions,
    });
    Ok(answer.to_string().into_bytes())
}

impl Body {
    /// The locations of its library, found by the debug id, or by the code id if that is missing.
    fn library<'a>(&self, server: &'a SymbolServer) -> Option<&'a [LibraryLocation]> {
        let by_debug_id = (self.debug_name.as_ref()).zip(self.debug_id.as_ref());
        let by_debug_id = by_debug_id.and_then(|(name, id)| server.library(name, id));
        by_debug_id
            .or_else(|| server.library_by_code(self.name.as_deref()?, self.code_id.as_deref()?))
    }
}

/// A number in the protocol's form of addresses: `"0x1f"`.
fn number(text: &str) -> Result<u32, RequestError> {
    let digits = text.strip_prefix("0x").unwrap_or(text);
    u32::from_str_radix(digits, 16).map_err(|_| RequestError::NotANumber)
}
