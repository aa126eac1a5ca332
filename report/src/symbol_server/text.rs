//! `/source/v1`.

use serde::Deserialize;
use serde_json::json;

use super::{RequestError, SymbolServer, resolve};
use crate::profile::Profile;

/// The longest source file in bytes.
const MAX_SOURCE: u64 = 16 << 20;
/// The fewest parts of a path that a source file is found by, beside the whole path: by its name alone it would be another one.
const MIN_PARTS: usize = 2;

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
    let text = text(server, &file).ok_or(RequestError::NoSource)?;
    let answer = json!({
        "symbolsLastModified": null,
        "sourceLastModified": null,
        "file": file,
        "source": text,
    });
    Ok(answer.to_string().into_bytes())
}

/// The text of the source file that the compiler had at `path`. The folders have it under that path, or under its end.
fn text(server: &SymbolServer, path: &str) -> Option<String> {
    candidates(path).into_iter().find_map(|path| {
        let mut folders = server.sources.iter();
        let bytes = folders.find_map(|folder| folder.read(path, MAX_SOURCE))?;
        Some(String::from_utf8_lossy(&bytes).into_owned())
    })
}

/// The path, and what is left of it without its first parts.
fn candidates(path: &str) -> Vec<&str> {
    let whole = path.trim_start_matches('/');
    let ends = whole
        .match_indices('/')
        .map(|(slash, _)| &whole[slash + 1..]);
    let ends = ends.filter(|end| end.split('/').count() >= MIN_PARTS);
    [whole].into_iter().chain(ends).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_looked_for_by_the_ends_of_its_path() {
        assert_eq!(
            candidates("/build/linux-6.1/kernel/fork.c"),
            [
                "build/linux-6.1/kernel/fork.c",
                "linux-6.1/kernel/fork.c",
                "kernel/fork.c"
            ]
        );
        assert_eq!(candidates("work.c"), ["work.c"]);
        assert_eq!(candidates(""), [""]);
    }
}
