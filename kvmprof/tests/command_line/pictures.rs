//! Texts in the pictures of recordings.

use crate::Folder;

/// The recordings have neither release nor build id.
const TITLE: &str = "bzImage, 1000 Hz, 2023-11-14 22:13:20 UTC";

#[test]
fn pictures_name_their_recording() {
    let folder = Folder::new();
    let svg = folder.run(&["flamegraph", "before", "--output", "-"]);
    svg.assert_success();
    assert!(svg.stdout.contains(&format!(">{TITLE}</text>")));
    let page = folder.run(&["html", "before", "--output", "-"]);
    page.assert_success();
    for tag in ["title", "h1"] {
        let has = page.stdout.contains(&format!("<{tag}>{TITLE}</{tag}>"));
        assert!(has, "{tag}");
    }
    let both = folder.run(&["flamegraph", "before", "after", "--output", "-"]);
    both.assert_success();
    assert!(
        both.stdout
            .contains(&format!(">{TITLE}, and another recording</text>"))
    );
    let titled = folder.run(&["flamegraph", "before", "--output", "-", "--title", "Mine"]);
    assert!(titled.stdout.contains(">Mine</text>") && !titled.stdout.contains(TITLE));
}

#[test]
fn changes_have_a_legend_of_their_steps() {
    let folder = Folder::new();
    let svg = folder.run(&["diff", "before", "after", "--output", "-"]);
    svg.assert_success();
    let subtitle = "200 ticks against 140: colours of functions&apos; own shares";
    assert!(svg.stdout.contains(subtitle), "{}", svg.stdout);
    let (_, legend) = svg.stdout.split_once("<g id=\"legend\">").unwrap();
    for step in ["+5 %", "-0.1 %"] {
        assert!(legend.contains(&format!(">{step}</text>")), "{legend}");
    }
}
