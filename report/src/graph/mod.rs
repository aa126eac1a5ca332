//! Draws folded stacks as flame graphs.

mod arguments;
mod marks;
mod palette;
mod titles;
mod tooltips;

pub use arguments::{GraphArguments, GraphError};
pub(crate) use marks::{CUT, GROUP, MARKS};
pub use marks::{marked, with_torn_edges};
pub use titles::{account, account_of_changes, title, title_of};
pub use tooltips::Modules;

use inferno::flamegraph::color::{BackgroundColor, Color};
use inferno::flamegraph::{Direction, Options, TextTruncateDirection, from_lines};

use self::palette::{CHANGES, MODES, Shade, by_change, by_name, cut};
use self::tooltips::with_tooltips;
use crate::markup::Markup;
use crate::text::visible;

/// The appearance of a flame graph.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Graph {
    /// The text above it.
    pub title: String,
    /// The text below the title.
    pub subtitle: String,
    /// Whether the outermost frames are at the top.
    pub icicle: bool,
    /// Whether lines have two counts; colours then show the change from the first to the second, in fixed steps.
    pub differential: bool,
    /// The modules that tooltips of functions name.
    pub modules: Modules,
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
        options.bgcolors = Some(BackgroundColor::Flat(Color::new(255, 255, 255)));
        // The same recording must give the same picture.
        options.deterministic = true;
        options.text_truncate_direction = TextTruncateDirection::Right;
        options.direction = if self.icicle {
            Direction::Inverted
        } else {
            Direction::Straight
        };
        let lines: Vec<String> = lines.iter().map(|line| visible(line)).collect();
        let mut palette = by_name(&lines);
        if !self.differential {
            options.palette_map = Some(&mut palette);
        }
        let mut svg = Vec::new();
        from_lines(&mut options, lines.iter().map(String::as_str), &mut svg)?;
        let svg = String::from_utf8_lossy(&svg);
        let svg = if self.differential {
            self.finish(&by_change(&svg), &CHANGES)
        } else {
            self.finish(&svg, &MODES)
        };
        Ok(svg.into_bytes())
    }
}

/// Height of a frame with the gap to the next one, in pixels, and of its torn edge.
const FRAME: u32 = 16;
const TORN: u32 = 3;

impl Graph {
    /// Removes the marks from an SVG document, fills frames whose callers are missing with a pattern that has a dotted edge towards them, and adds
    /// the legend of these colours, on the left below the title.
    fn finish(&self, svg: &str, shades: &[Shade]) -> String {
        let text = label_root(&svg.replace(MARKS, ""));
        let kinds = if self.differential { &[] } else { shades };
        let mut text = with_tooltips(&text, &self.modules, kinds);
        let mut end = Markup::default();
        end.add("<defs>");
        let begin = Self::first_edge(&text);
        for (name, _, color) in shades {
            let [r, g, b] = cut(*color);
            text = text.replace(
                &format!("fill=\"rgb({r},{g},{b})\""),
                &format!("fill=\"url(#cut-{name})\""),
            );
            let [r, g, b] = color;
            // Frames are one pixel lower than their distance.
            let edge = if self.icicle { 0 } else { FRAME - 1 - TORN };
            end.add("<pattern id=\"cut-").text(name);
            end.add("\" patternUnits=\"userSpaceOnUse\" y=\"")
                .text(begin);
            end.add("\" width=\"6\" height=\"").text(FRAME);
            end.add("\"><rect width=\"6\" height=\"").text(FRAME);
            end.add("\" fill=\"").text(format_args!("rgb({r},{g},{b})"));
            end.add("\"/><rect y=\"").text(edge);
            end.add("\" width=\"3\" height=\"").text(TORN);
            end.add("\" fill=\"").text(TORN_COLOR);
            end.add("\"/></pattern>");
        }
        end.add("</defs><g id=\"legend\">");
        let mut left = 10;
        for (_, label, [r, g, b]) in shades {
            left = add_legend(&mut end, left, label, &format!("rgb({r},{g},{b})"));
        }
        let example = if self.differential { "same" } else { "user" };
        left = add_legend(&mut end, left, "cut short", &format!("url(#cut-{example})"));
        end.add("</g>");
        end.add(SCREEN_STYLE);
        add_narrow(&mut end, left, self.subtitle.chars().count());
        // The legend is on the left of the subtitle.
        text = text.replacen(SUBTITLE, SUBTITLE_ON_THE_RIGHT, 1);
        if let Some(place) = text.rfind("</svg>") {
            text.insert_str(place, end.as_str());
        }
        text
    }

    /// The top of a frame, in pixels from the top of the picture. The distance between frames is constant.
    fn first_edge(svg: &str) -> u32 {
        let frames = svg
            .split_once("id=\"frames\"")
            .map_or("", |(_, frames)| frames);
        let y = frames.split_once(" y=\"").map_or("", |(_, y)| y);
        let y = y.split_once('"').map_or("", |(y, _)| y);
        y.parse().map_or(0, |y: u32| y % FRAME)
    }
}

/// Labels the frame of all stacks: inferno leaves that to the script, which viewers of pictures don't run.
fn label_root(svg: &str) -> String {
    const WHOLE: &str = "width=\"100.0000%\"";
    for (begin, _) in svg.match_indices("<title>all (") {
        let (before, frame) = svg.split_at(begin);
        if let Some((rect, rest)) = frame.split_once("></text>")
            && !rect.contains("</g>")
            && rect.contains(WHOLE)
        {
            return format!("{before}{rect}>all</text>{rest}");
        }
    }
    svg.to_owned()
}

/// The search can be seen, and where the reader's screen is dark the picture is, too: its background, and all text that isn't in a frame.
const SCREEN_STYLE: &str = "<style type=\"text/css\">#search { opacity:0.7 } @media (prefers-color-scheme:dark) { \
     svg > rect { fill:#0d1117 } svg > text, #legend text { fill:#e6edf3 } }</style>";

/// The colour of a torn edge, that of the page.
const TORN_COLOR: &str = "rgb(87,96,106)";

/// The start of the subtitle in inferno's documents, and its new position.
const SUBTITLE: &str = "<text id=\"subtitle\" x=\"50.0000%\"";
const SUBTITLE_ON_THE_RIGHT: &str =
    "<text id=\"subtitle\" style=\"text-anchor:end\" x=\"99.0000%\"";

/// The size of a colour of the legend, the distance from there to its text, and the most that a character of a monospaced font of 12 pixels is
/// wide, in pixels.
const BOX: usize = 15;
const TEXT_AT: usize = 19;
const CHARACTER: usize = 8;

/// The width of a telephone's window, in pixels, and what is narrower than any of its windows.
const TELEPHONE: usize = 600;
const NARROWEST: usize = 340;

/// Adds the style of a picture that is too narrow for a legend up to `legend` pixels beside a subtitle of this many characters: the subtitle goes
/// between the title and the legend, and a telephone has small letters.
fn add_narrow(svg: &mut Markup, legend: usize, subtitle: usize) {
    let both = legend.saturating_add(CHARACTER.saturating_mul(subtitle));
    let scale = 100 * NARROWEST / legend.max(NARROWEST);
    svg.add("<style type=\"text/css\">@media (max-width:")
        .text(both)
        .add(
            "px) { #title, #search, #unzoom { transform:translateY(-9px) } \
             #subtitle { transform:translateY(-15px) } } @media (max-width:",
        )
        .text(TELEPHONE)
        .add(
            "px) { #title { font-size:9px } #subtitle { font-size:8px } \
             #legend { transform-origin:10px 51px; transform:scale(",
        )
        .text(format_args!("{}.{:02}", scale / 100, scale % 100))
        .add(") } }</style>");
}

/// Adds one colour of the legend at `left` pixels, and returns the place of the next one.
fn add_legend(svg: &mut Markup, left: usize, label: &str, fill: &str) -> usize {
    svg.add("<rect x=\"").text(left);
    svg.add("\" y=\"36\" width=\"").text(BOX);
    svg.add("\" height=\"").text(BOX);
    svg.add("\" fill=\"").text(fill);
    svg.add("\" stroke=\"gray\"/><text x=\"")
        .text(left + TEXT_AT);
    svg.add("\" y=\"48\">").text(label).add("</text>");
    left + TEXT_AT + CHARACTER * (label.len() + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn(graph: &Graph, lines: &[&str]) -> String {
        let lines: Vec<String> = lines.iter().map(|line| (*line).to_owned()).collect();
        String::from_utf8(graph.draw(&lines).unwrap()).unwrap()
    }

    #[test]
    fn names_are_escaped() {
        let graph = Graph {
            title: "</text><script>alert(1)</script>\x01".to_owned(),
            ..Graph::default()
        };
        let svg = drawn(&graph, &["<script>x</script>\x1b-7;a\"'&b 3"]);
        assert!(svg.contains("&lt;script&gt;x&lt;/script&gt;�-7"), "{svg}");
        assert_eq!(svg.matches("<script").count(), 1);
        let is_text = |letter: char| "\n\t".contains(letter) || !letter.is_control();
        assert!(svg.chars().all(is_text));
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
        assert!(flames.contains("b (2 ticks, 66.67%, kernel)"), "{flames}");
    }

    #[test]
    fn frames_have_the_colours_of_the_page() {
        let svg = drawn(&Graph::default(), &["p-7;f;g_[k] 2", "[idle];[halted] 1"]);
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

    /// Also in a viewer without scripts.
    #[test]
    fn the_bottom_frame_is_labelled() {
        let svg = drawn(&Graph::default(), &["p-7;all;f 2", "p-8;all;f 2"]);
        let (_, root) = svg.split_once("<title>all (4 ticks, 100%)").unwrap();
        let (root, _) = root.split_once("</g>").unwrap();
        assert!(root.ends_with(">all</text>"), "{root}");
    }

    #[test]
    fn the_background_is_plain_and_can_be_dark() {
        for icicle in [false, true] {
            let graph = Graph {
                icicle,
                ..Graph::default()
            };
            let svg = drawn(&graph, &["p-7;f 2"]);
            assert_eq!(svg.matches("stop-color=\"#ffffff\"").count(), 2, "{svg}");
            assert_eq!(svg.matches("(prefers-color-scheme:dark)").count(), 1);
            assert_eq!(svg.matches("<pattern id=").count(), MODES.len());
            assert_eq!(svg.matches(SUBTITLE_ON_THE_RIGHT).count(), 1);
        }
        let css = include_str!("../html/script/palette.css");
        assert!(css.contains("--torn: #57606a;") && TORN_COLOR == "rgb(87,96,106)");
    }

    #[test]
    fn labels_of_the_legend_are_beside_its_colours() {
        let svg = drawn(&Graph::default(), &["p-7;f 2"]);
        let (_, legend) = svg.split_once("<g id=\"legend\">").unwrap();
        let number = |text: &str| text.split('"').next().unwrap().parse::<usize>().unwrap();
        let mut end = 0;
        for entry in legend.split("<rect x=\"").skip(1) {
            assert!(number(entry) >= end, "{legend}");
            let (_, text) = entry.split_once("<text x=\"").unwrap();
            let (_, word) = text.split_once('>').unwrap();
            let word = word.split('<').next().unwrap();
            // The widest monospaced fonts have characters of 0.62 em.
            end = number(text) + (word.len() * 62 * 12).div_ceil(100) + 4;
        }
        assert!(end > 0);
    }

    /// Beside each other they take 8 pixels a character, and a narrower window has less room.
    #[test]
    fn a_narrow_picture_has_the_legend_below_its_subtitle() {
        let graph = Graph {
            subtitle: "x".repeat(50),
            ..Graph::default()
        };
        let svg = drawn(&graph, &["p-7;f 2"]);
        let (_, style) = svg.split_once("@media (max-width:").unwrap();
        let width: usize = style.split_once("px").unwrap().0.parse().unwrap();
        let (_, legend) = svg.split_once("<g id=\"legend\">").unwrap();
        let last = legend.rsplit("<text x=\"").next().unwrap();
        let last: usize = last.split_once('"').unwrap().0.parse().unwrap();
        let least = last + 8 * ("cut short".len() + 50);
        assert!(width >= least, "{width}: {last}");
        assert!(style.contains("#subtitle { transform:translateY(-15px) }"));
    }

    #[test]
    fn names_with_marks_lose_them() {
        let svg = drawn(&Graph::default(), &["p-7;a\u{e003}b 3"]);
        assert!(svg.contains("<title>ab (3 ticks"), "{svg}");
    }

    #[test]
    fn an_empty_graph_is_an_error() {
        assert!(Graph::default().draw(&[]).is_err());
    }
}
