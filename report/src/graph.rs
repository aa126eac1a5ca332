//! Draws folded stacks as flame graphs.

use std::ffi::OsStr;
use std::path::Path;

use inferno::flamegraph::color::{Color, PaletteMap};
use inferno::flamegraph::{Direction, Options, TextTruncateDirection, from_lines};

use crate::profile::{CUT_SHORT, HALTED, KERNEL_MARK, Profile, Weight};
use crate::text::visible;

/// What frames are coloured by: its name in the legend and in `html/script/palette.css`, which has the same colours, and the
/// colour as RGB.
const PALETTE: [(&str, [u8; 3]); 4] = [
    ("user", [0x8c, 0xc2, 0xf5]),
    ("kernel", [0xf4, 0xa4, 0x60]),
    ("idle", [0xcf, 0xd6, 0xdd]),
    ("group", [0xdf, 0xe3, 0xe8]),
];

/// The appearance of a flame graph.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Graph {
    /// The text above it.
    pub title: String,
    /// The text below the title.
    pub subtitle: String,
    /// Whether the outermost frames are at the top.
    pub icicle: bool,
    /// Whether lines have two counts; colours then show the change from the first to the second.
    pub differential: bool,
}

impl Graph {
    /// Draws `lines`, folded stacks, as an SVG document, with the colours of the page and a legend.
    ///
    /// # Errors
    /// There is no stack with a sample.
    pub fn draw(&self, lines: &[String]) -> std::io::Result<Vec<u8>> {
        let mut options = Options::default();
        options.title = visible(&self.title);
        options.subtitle = Some(visible(&self.subtitle));
        options.count_name = "ticks".to_owned();
        // The same recording must give the same picture.
        options.deterministic = true;
        options.text_truncate_direction = TextTruncateDirection::Right;
        options.direction = if self.icicle {
            Direction::Inverted
        } else {
            Direction::Straight
        };
        let lines: Vec<String> = lines.iter().map(|line| visible(line)).collect();
        let mut palette = palette(&lines);
        if !self.differential {
            options.palette_map = Some(&mut palette);
        }
        let mut svg = Vec::new();
        from_lines(&mut options, lines.iter().map(String::as_str), &mut svg)?;
        if !self.differential {
            insert_legend(&mut svg);
        }
        Ok(svg)
    }
}

/// The colour of each frame, by its name in folded stacks.
fn palette(lines: &[String]) -> PaletteMap {
    let [user, kernel, idle, group] = PALETTE.map(|(_, [r, g, b])| Color { r, g, b });
    let mut palette = PaletteMap::default();
    for line in lines {
        let stack = line.rsplit_once(' ').map_or("", |(stack, _)| stack);
        for (depth, name) in stack.split(';').enumerate() {
            let color = match name {
                _ if depth == 0 || name == CUT_SHORT => group,
                HALTED => idle,
                _ if name.ends_with(KERNEL_MARK) => kernel,
                _ => user,
            };
            palette.insert(name, color);
        }
    }
    // The frame below all others has no name of its own.
    palette.insert("", group);
    palette
}

/// Adds the legend to an SVG document, on the left below the title.
fn insert_legend(svg: &mut Vec<u8>) {
    const END: &[u8] = b"</svg>";
    let Some(end) = svg.windows(END.len()).rposition(|bytes| bytes == END) else {
        return;
    };
    let mut legend = String::from("<g id=\"legend\">");
    for (place, (name, [r, g, b])) in PALETTE.into_iter().enumerate() {
        let left = 10 + 70 * place;
        let text = if name == "group" { "process" } else { name };
        legend += &format!(
            "<rect x=\"{left}\" y=\"38\" width=\"11\" height=\"11\" fill=\"rgb({r},{g},{b})\" stroke=\"gray\"/>\
             <text x=\"{}\" y=\"48\">{text}</text>",
            left + 16
        );
    }
    legend += "</g>";
    svg.splice(end..end, legend.into_bytes());
}

/// The default title for `profile`.
pub fn title(profile: &Profile) -> String {
    let kernel = Path::new(&profile.contents.info.kernel).file_name();
    let kernel = kernel.and_then(OsStr::to_str).unwrap_or("A guest");
    match profile.merged.len() {
        0 => format!("{kernel}, seen from the hypervisor"),
        others => format!("{kernel} and {others} more, seen from the hypervisor"),
    }
}

/// The account of `profile`'s ticks, as a line of text.
pub fn account(profile: &Profile) -> String {
    let account = profile.account();
    let info = &profile.contents.info;
    let mut text = match info.event {
        None => format!(
            "{} samples and {} idle ticks at {}; {} stolen, {} lost",
            account.samples,
            account.idle,
            info.rate(),
            account.stolen,
            account.lost
        ),
        Some(event) => format!(
            "{} samples: {}{}; {} lost",
            account.samples,
            event.describe(),
            if Weight::of_tick(info).quantity.is_time() {
                ""
            } else {
                ", whatever time it took"
            },
            account.lost
        ),
    };
    if account.ungathered > 0 {
        text += &format!(", {} of others", account.ungathered);
    }
    if profile.incompleteness().is_some() {
        text += "; not the whole recording";
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn(graph: &Graph, lines: &[&str]) -> String {
        let lines: Vec<String> = lines.iter().map(|line| (*line).to_owned()).collect();
        String::from_utf8(graph.draw(&lines).unwrap()).unwrap()
    }

    #[test]
    fn names_are_text_and_nothing_else() {
        let graph = Graph {
            title: "</text><script>alert(1)</script>\x01".to_owned(),
            ..Graph::default()
        };
        let svg = drawn(&graph, &["<script>x</script>\x1b-7;a\"'&b 3"]);
        assert!(svg.contains("&lt;script&gt;x&lt;/script&gt;�-7"), "{svg}");
        assert_eq!(svg.matches("<script").count(), 1);
        assert!(
            svg.chars()
                .all(|c| c == '\n' || c == '\t' || !c.is_control())
        );
    }

    #[test]
    fn icicles_hang() {
        let lines = ["a;b_[k] 2", "a;c 1"];
        let flames = drawn(&Graph::default(), &lines);
        let icicles = Graph {
            icicle: true,
            ..Graph::default()
        };
        let icicles = drawn(&icicles, &lines);
        assert!(flames.contains("inverted = false"));
        assert!(icicles.contains("inverted = true"));
        assert!(flames.contains("b (2 ticks, 66.67%)"), "{flames}");
    }

    #[test]
    fn frames_have_the_colours_of_the_page() {
        let css = include_str!("html/script/palette.css");
        for (name, [r, g, b]) in PALETTE {
            let color = format!("--{name}: #{r:02x}{g:02x}{b:02x};");
            assert!(css.contains(&color), "{color}");
        }
        let svg = drawn(&Graph::default(), &["p-7;f;g_[k] 2", "pid-0;[halted] 1"]);
        for (name, color) in [
            ("p-7", "223,227,232"),
            ("f", "140,194,245"),
            ("g", "244,164,96"),
            ("[halted]", "207,214,221"),
        ] {
            let (_, frame) = svg.split_once(&format!("<title>{name} (")).unwrap();
            let (_, fill) = frame.split_once("fill=\"").unwrap();
            assert!(fill.starts_with(&format!("rgb({color})")), "{name}: {fill}");
        }
        assert_eq!(svg.matches("<g id=\"legend\">").count(), 1);
    }

    #[test]
    fn nothing_is_an_error() {
        assert!(Graph::default().draw(&[]).is_err());
    }
}
