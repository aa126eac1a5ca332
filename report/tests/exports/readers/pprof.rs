//! Reads the export with Go's pprof.

use std::process::Command;

use kvmprof_report::export::Format;

use super::{ROUNDS, exported, run};

/// Two columns of `go tool pprof -top`: name and flat.
fn pprof_rows(text: &str) -> Vec<(String, u64)> {
    let mut lines = text.lines();
    lines
        .by_ref()
        .find(|line| line.contains("flat%"))
        .unwrap_or_else(|| panic!("{text}"));
    lines
        .map(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            (words[5..].join(" "), words[0].parse().unwrap())
        })
        .collect()
}

#[test]
fn go_tool_pprof_reads_pprof() {
    let (_folder, file, expected) = exported(Format::Pprof);
    let pprof = |arguments: &[&str]| {
        let all = [&["tool", "pprof", "-sample_index=samples"], arguments].concat();
        run(Command::new("go").args(all).arg(&file))
    };
    let top = pprof_rows(&pprof(&["-top"]));
    assert_eq!(top[..5], expected);

    let of_batch = pprof_rows(&pprof(&["-top", "-tagfocus=comm=batch"]));
    assert_eq!(of_batch[0], ("0x402080".to_owned(), 17 * ROUNDS));
    let of_interrupts = pprof_rows(&pprof(&["-top", "-tagfocus=mode=interrupt"]));
    assert_eq!(
        of_interrupts[0],
        ("update_process_times".to_owned(), 3 * ROUNDS)
    );
    let tags = pprof(&["-tags"]);
    for tag in ["server worker", "swapper/1", "vcpu", "tid", "230"] {
        assert!(tags.contains(tag), "{tags}");
    }
    let peek = pprof(&["-peek=^copy_page_to_iter$"]);
    assert!(peek.contains("ksys_read"), "{peek}");
}
