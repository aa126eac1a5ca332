//! Names that don't leave the host.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;

use kvmprof_collect::hash::{Hashed, Key};
use kvmprof_tests::{Boot, Guest, on_kvm_with_collector, until};

use super::{Fleet, free_port, get, parquet_rows, ticks_of};

/// Two processes are hashed, one is dropped: neither their names, nor those of their functions, leave the host.
#[test]
fn hashed_and_dropped_names_stay_on_the_host() {
    on_kvm_with_collector(|| {
        let guest = Guest::start(Boot::Demo, ["--hz", "100"]);
        let fleet = Fleet::new(&[("first", guest.socket())]);
        let (address, lake, key) = (free_port(), fleet.path("lake"), fleet.path("key"));
        fs::write(&key, b"a key of 16 bytes and more").unwrap();
        fs::set_permissions(&key, Permissions::from_mode(0o600)).unwrap();
        fleet.configure(&format!(
            "drop = ['dyer']\nhash.processes = ['weav*', 'carder']\nhash.key_file = '{}'\nmetrics.listen = '{address}'\n\
             [[sink]]\nname = 'lake'\ntype = 'parquet'\nseconds = 2\nfolder = '{}'\n",
            key.display(),
            lake.display()
        ));
        let hashed = Hashed {
            processes: Vec::new(),
            key: Key::read(&key).unwrap(),
            keeps_stacks: false,
        };
        let hashes = ["weaver", "carder"].map(|name| hashed.of(name));
        let collector = fleet.start();
        let page = until("every process has samples", || {
            let page = get(&address)?;
            let names = [hashes[0].as_str(), &hashes[1], "spinner", "other"];
            let mut series = names
                .map(|name| format!("process=\"{name}\",mode=\"user\"}}"))
                .into_iter();
            series.all(|series| page.contains(&series)).then_some(page)
        });
        fleet.until_delivered("lake", fleet.windows());
        let said = fleet.stop(collector);
        let rows = parquet_rows(&lake);
        let written: Vec<String> = rows.iter().map(ToString::to_string).collect();
        for text in written.iter().chain([&page, &said]) {
            for private in ["weav", "carder", "dyer"] {
                assert!(!text.contains(private), "{private} in {text}");
            }
        }
        for hash in &hashes {
            let mine = rows.iter().zip(&written);
            let mut mine = mine.filter(|(_, text)| text.contains(hash)).peekable();
            assert!(mine.peek().is_some(), "{written:?}");
            for (row, text) in mine {
                assert!(ticks_of(row) > 0 && text.contains("stack: []"), "{text}");
            }
        }
        assert!(
            written.iter().any(|text| text.contains("spin")),
            "{written:?}"
        );
        guest.stop();
    });
}
