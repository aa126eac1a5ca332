//! The colours of frames, which are those of the page.

use inferno::flamegraph::color::{Color, PaletteMap};

use super::marks::{CUT, GROUP, IDLE, INTERRUPT};
use crate::model::{CUT_SHORT, HALTED};
use crate::profile::KERNEL_MARK;

/// A colour of frames: its name in `html/script/palette.css`, which has the same colours, its word in the legend, and the colour as RGB.
pub type Shade = (&'static str, &'static str, [u8; 3]);

/// The kind of a frame's code.
pub const MODES: [Shade; 5] = [
    ("user", "user", [0x8c, 0xc2, 0xf5]),
    ("kernel", "kernel", [0xf4, 0xa4, 0x60]),
    ("interrupt", "interrupt", [0xe3, 0xa1, 0xda]),
    ("idle", "idle", [0xcf, 0xd6, 0xdd]),
    ("group", "process", [0xdf, 0xe3, 0xe8]),
];

/// Colours of changes of a function's own share, in percentages of all ticks. The steps are the same in all pictures, so that small changes look small.
pub const CHANGES: [Shade; 7] = [
    ("more3", "+5 %", [0xee, 0x88, 0x76]),
    ("more2", "+1 %", [0xf6, 0xb3, 0xa7]),
    ("more1", "+0.1 %", [0xfb, 0xdc, 0xd6]),
    ("same", "less than that", [0xee, 0xf0, 0xf2]),
    ("less1", "-0.1 %", [0xda, 0xe8, 0xfc]),
    ("less2", "-1 %", [0xaa, 0xcb, 0xf7]),
    ("less3", "-5 %", [0x7b, 0xad, 0xf0]),
];

/// The colour of each frame, by its name in folded stacks.
pub fn by_name(lines: &[String]) -> PaletteMap {
    let [user, kernel, interrupt, idle, group] = MODES.map(|(.., rgb)| rgb);
    let mut palette = PaletteMap::default();
    for line in lines {
        let stack = line.rsplit_once(' ').map_or("", |(stack, _)| stack);
        for (depth, name) in stack.split(';').enumerate() {
            let color = match name {
                _ if depth == 0 || name == CUT_SHORT || name.contains(GROUP) => group,
                HALTED => idle,
                _ if name.contains(IDLE) => idle,
                _ if !name.ends_with(KERNEL_MARK) => user,
                _ if name.contains(INTERRUPT) => interrupt,
                _ => kernel,
            };
            let [r, g, b] = if name.contains(CUT) {
                cut(color)
            } else {
                color
            };
            palette.insert(name, Color { r, g, b });
        }
    }
    // The frame below all others has no name of its own.
    let [r, g, b] = group;
    palette.insert("", Color { r, g, b });
    palette
}

/// A placeholder colour for `color` with a torn edge until the picture is finished.
pub fn cut([r, g, b]: [u8; 3]) -> [u8; 3] {
    [r, g, b ^ 1]
}

/// The colour for a change of a share by this many percent of all ticks.
fn of_change(percent: f64) -> [u8; 3] {
    let [more3, more2, more1, same, less1, less2, less3] = CHANGES.map(|(.., rgb)| rgb);
    let steps = [
        (5.0, more3, less3),
        (1.0, more2, less2),
        (0.1, more1, less1),
    ];
    let step = steps
        .into_iter()
        .find(|(least, ..)| percent.abs() >= *least);
    match step {
        None => same,
        Some((_, more, _)) if percent > 0.0 => more,
        Some((_, _, less)) => less,
    }
}

/// Fills the frames of a differential SVG document of inferno's by the changes that their titles tell, such as `f (30 ticks, 20.00%; -22.67%)`. inferno
/// itself makes the largest change of each picture its deepest colour, however small it is.
pub fn by_change(svg: &str) -> String {
    let mut frames = svg.split(TITLE);
    let mut out = String::with_capacity(svg.len());
    out.push_str(frames.next().unwrap_or_default());
    for frame in frames {
        out.push_str(TITLE);
        let (title, rest) = frame.split_once(TITLE_END).unwrap_or((frame, ""));
        let change = title.strip_suffix("%)").and_then(|title| {
            let (_, change) = title.rsplit_once("; ")?;
            change.parse().ok()
        });
        // The frame below all others has none.
        let color = of_change(change.unwrap_or(0.0));
        let [r, g, b] = if title.contains(CUT) {
            cut(color)
        } else {
            color
        };
        out.push_str(title);
        if let Some((before, (_, after))) = rest
            .split_once(FILL)
            .and_then(|(before, rest)| Some((before, rest.split_once(FILL_END)?)))
        {
            out.push_str(TITLE_END);
            out.push_str(before);
            out.push_str(&format!("{FILL}{r},{g},{b}{FILL_END}"));
            out.push_str(after);
        } else {
            out.push_str(&frame[title.len()..]);
        }
    }
    out
}

/// The start and the end of titles and colours of frames in inferno's documents. A frame's title comes before its colour.
const TITLE: &str = "<title>";
const TITLE_END: &str = "</title>";
const FILL: &str = "fill=\"rgb(";
const FILL_END: &str = ")\"";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_have_the_steps_and_colours_of_the_page() {
        let css = include_str!("../html/script/palette.css");
        for (name, _, [r, g, b]) in MODES.into_iter().chain(CHANGES) {
            let color = format!("--{name}: #{r:02x}{g:02x}{b:02x};");
            assert!(css.contains(&color), "{color}");
        }
        let script = include_str!("../html/script/change.js");
        assert!(script.contains("[0.05, 0.01, 0.001]"));
        for (percent, wanted) in [
            (60.0, "more3"),
            (5.0, "more3"),
            (4.99, "more2"),
            (0.1, "more1"),
            (0.09, "same"),
            (0.0, "same"),
            (-0.09, "same"),
            (-0.99, "less1"),
            (-1.0, "less2"),
            (-100.0, "less3"),
        ] {
            let shade = CHANGES.into_iter().find(|(name, ..)| *name == wanted);
            assert_eq!(of_change(percent), shade.unwrap().2, "{percent}");
        }
    }

    #[test]
    fn colours_of_torn_frames_are_unique() {
        for shades in [&MODES[..], &CHANGES] {
            for (.., one) in shades {
                assert!(shades.iter().all(|(.., other)| cut(*one) != *other));
            }
        }
    }
}
