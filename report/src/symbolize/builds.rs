//! Build ids of modules.

use std::collections::{BTreeMap, BTreeSet};

use kvmprof_recording::file::Contents;

use super::kallsyms::KERNEL;
use super::module_name;
use crate::text::visible;

/// The build ids of a recording's files and of its kernel, by the modules that frames name.
#[derive(Clone, Debug, Default)]
pub struct BuildIds {
    of_modules: BTreeMap<String, BTreeSet<String>>,
}

impl BuildIds {
    /// The build ids of the recording with `contents`.
    pub fn new(contents: &Contents) -> Self {
        let mut of_modules: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        let kernel = contents.kernel.iter();
        let kernel = kernel.map(|kernel| (KERNEL, &kernel.build_id));
        let files = contents.binaries.iter();
        let files = files.map(|file| (module_name(&file.info.file), &file.info.build_id));
        for (module, build_id) in kernel.chain(files) {
            if !build_id.is_empty() {
                let build_ids = of_modules.entry(visible(module)).or_default();
                build_ids.insert(visible(build_id));
            }
        }
        Self { of_modules }
    }

    /// The build ids of all files with the name of `module`, in hexadecimal.
    pub fn all(&self, module: &str) -> impl Iterator<Item = &str> {
        let build_ids = self.of_modules.get(module).into_iter().flatten();
        build_ids.map(String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use kvmprof_recording::file::{Binary, BinaryInfo, KernelInfo};

    use super::*;

    #[test]
    fn files_of_one_name_keep_all_build_ids() {
        let binary = |file: &str, build_id: &str| Binary {
            info: BinaryInfo {
                file: file.to_owned(),
                build_id: build_id.to_owned(),
                ..BinaryInfo::default()
            },
            functions: String::new(),
        };
        let contents = Contents {
            kernel: Some(KernelInfo {
                build_id: "aa".to_owned(),
                ..KernelInfo::default()
            }),
            binaries: vec![
                binary("/bin/one", "11"),
                binary("/lib/two.so", "22"),
                binary("/old/two.so", "33"),
                binary("/bin/three", ""),
            ],
            ..Contents::default()
        };
        let builds = BuildIds::new(&contents);
        let all = |module: &str| builds.all(module).collect::<Vec<_>>();
        assert_eq!(all("[kernel]"), ["aa"]);
        assert_eq!(all("one"), ["11"]);
        assert_eq!(all("two.so"), ["22", "33"]);
        assert!(all("three").is_empty());
    }
}
