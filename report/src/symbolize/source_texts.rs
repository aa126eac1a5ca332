//! The text of source files.

use kvmprof_recording::Sysroot;

/// Maximum size of a source file, in bytes.
const MAX_SOURCE: u64 = 16 << 20;
/// Minimum number of components of a path's end that a source file is found by: its name alone could be that of another file.
const MIN_PARTS: usize = 2;

/// Folders with source files.
#[derive(Debug, Default)]
pub struct SourceTexts {
    folders: Vec<Sysroot>,
}

impl SourceTexts {
    /// Source files in `folders`, which are searched in this order.
    pub fn new(folders: Vec<Sysroot>) -> Self {
        Self { folders }
    }

    /// The text of the source file that the compiler read at `path`. A folder has it under that path, or under the path's end. `None` if no
    /// folder has it, or if it has more than 16 MiB.
    pub fn text(&self, path: &str) -> Option<String> {
        candidates(path).into_iter().find_map(|path| {
            let mut folders = self.folders.iter();
            let bytes = folders.find_map(|folder| folder.read(path, MAX_SOURCE))?;
            Some(String::from_utf8_lossy(&bytes).into_owned())
        })
    }
}

/// The path, and its ends without the first components.
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
    fn a_file_is_searched_by_suffixes_of_its_path() {
        let path = "build/linux-6.1/kernel/fork.c";
        let found = candidates("/build/linux-6.1/kernel/fork.c");
        assert_eq!(found, [path, "linux-6.1/kernel/fork.c", "kernel/fork.c"]);
        assert_eq!(candidates("work.c"), ["work.c"]);
        assert_eq!(candidates(""), [""]);
    }
}
