//! `/source/v1`.

use serde::Deserialize;
use serde_json::json;

use super::{RequestError, SymbolServer, resolve};
use crate::profile::Profile;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Body {
    debug_name: String,
    debug_id: String,
    module_offset: String,
    file: String,
}

/// The answer to the request with this `body`: the text of a file that the debug information names at the address.
pub fn answer(
    server: &SymbolServer,
    profile: &Profile,
    body: &[u8],
) -> Result<Vec<u8>, RequestError> {
    let Body {
        debug_name,
        debug_id,
        module_offset,
        file,
    } = serde_json::from_slice(body)?;
    let library = server.library(&debug_name, &debug_id);
    let library = library.ok_or(RequestError::NoLibrary)?;
    let digits = module_offset.trim_start_matches("0x");
    let address = u32::from_str_radix(digits, 16).map_err(|_| RequestError::NotNamed)?;
    let resolved = resolve(profile, library, address).ok_or(RequestError::NotNamed)?;
    let sources = resolved.frames.iter();
    let mut sources = sources.filter_map(|frame| frame.source.as_ref());
    if !sources.any(|source| *source.file == *file) {
        return Err(RequestError::NotNamed);
    }
    let text = server.sources.text(&file).ok_or(RequestError::NoSource)?;
    let answer = json!({
        "symbolsLastModified": null,
        "sourceLastModified": null,
        "file": file,
        "source": text,
    });
    Ok(answer.to_string().into_bytes())
}
