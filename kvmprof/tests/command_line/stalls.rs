//! `kvmprof stalls` of a recording that wasn't made by a guest.

use serde_json::json;

use super::{FAILURE, Folder};

#[test]
fn stolen_ticks_of_a_halted_vcpu_are_separate() {
    let folder = Folder::new();
    let ran = folder.run(&["stalls", "before"]);
    ran.assert_success();
    for text in [
        "Interrupts were off in 0 of",
        "The host ran something else on 4 of",
        "[halted]",
    ] {
        assert!(ran.stdout.contains(text), "{text} in {ran:?}");
    }
    let document = folder.document(&["stalls", "before"]);
    let halted = json!({ "process": "[idle]", "function": "[halted]", "module": "[idle]" });
    let expected = json!([{ "ticks": 4, "last_seen": halted }]);
    assert_eq!(document["stalls"]["stolen"], expected);
}

#[test]
fn a_time_without_anything_is_an_error() {
    let folder = Folder::new();
    let ran = folder.run(&["stalls", "before", "--time", "100:200"]);
    ran.assert_refused(FAILURE, &["Nothing in before matches --time"]);
}

/// The first limit has no room for a row, the second one none for what is written.
#[test]
fn tables_and_document_end_at_the_output_limit() {
    let folder = Folder::new();
    let forms: [&[&str]; 2] = [&[], &["--json"]];
    for limit in ["1K", "1500"] {
        for form in forms {
            let words = ["stalls", "before", "--output-limit", limit];
            let ran = folder.run(&[&words[..], form].concat());
            ran.assert_refused(FAILURE, &["would take more than 1", "--output-limit"]);
        }
    }
    let ran = folder.run(&["stalls", "before", "--json", "--output-limit", "16K"]);
    ran.assert_success();
}
