//! The flame graph's frames, which the page's script draws.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use serde_json::json;

use crate::profile::MARKS;
use crate::text::visible;

/// Maximum number of frames that are drawn: the largest ones.
const MAX_FRAMES: usize = 20_000;

#[derive(Debug, Default)]
struct Frame {
    name: usize,
    count: u64,
    /// By the numbers of their names.
    children: BTreeMap<usize, usize>,
}

/// Folded stacks as a tree.
#[derive(Debug)]
pub struct Flames {
    names: Vec<String>,
    numbers: HashMap<String, usize>,
    /// The first frame contains all others.
    frames: Vec<Frame>,
    modules: HashMap<String, Arc<str>>,
}

impl Flames {
    /// Reads folded stacks, lines with a stack and a count.
    pub fn new(lines: &[String]) -> Self {
        let mut flames = Self {
            names: vec!["all".to_owned()],
            numbers: HashMap::new(),
            frames: vec![Frame::default()],
            modules: HashMap::new(),
        };
        for line in lines {
            if let Some((stack, count)) = line.rsplit_once(' ')
                && let Ok(count) = count.parse()
            {
                flames.add(stack, count);
            }
        }
        flames
    }

    /// Adds the frames' modules, by the frames' names.
    pub fn with_modules(self, modules: HashMap<String, Arc<str>>) -> Self {
        Self { modules, ..self }
    }

    fn add(&mut self, stack: &str, count: u64) {
        let mut at = 0;
        self.frames[0].count = self.frames[0].count.saturating_add(count);
        for name in stack.split(';') {
            let name = self.number_of(name);
            let next = self.frames.len();
            at = *self.frames[at].children.entry(name).or_insert(next);
            if at == next {
                self.frames.push(Frame {
                    name,
                    ..Frame::default()
                });
            }
            self.frames[at].count = self.frames[at].count.saturating_add(count);
        }
    }

    fn number_of(&mut self, name: &str) -> usize {
        if let Some(number) = self.numbers.get(name) {
            return *number;
        }
        let number = self.names.len();
        self.names.push(name.to_owned());
        self.numbers.insert(name.to_owned(), number);
        number
    }

    /// The minimum number of samples of a frame that is drawn.
    fn least(&self) -> u64 {
        let mut counts: Vec<u64> = self.frames.iter().map(|frame| frame.count).collect();
        counts.sort_unstable_by(|left, right| right.cmp(left));
        counts
            .get(MAX_FRAMES)
            .map_or(1, |count| count.saturating_add(1))
    }

    /// The largest frames, as JSON that is safe in a script element: `names`; `kernel`, 1 for the names of kernel
    /// functions; `modules`, the modules of the names, empty if unknown; `frames`, for each one, from the outermost in,
    /// its name's number, depth and count; `left_out`, the number of other frames.
    pub fn json(&self) -> String {
        let least = self.least();
        let (mut names, mut kernel, mut modules) = (Vec::new(), Vec::new(), Vec::new());
        let mut numbers: HashMap<usize, usize> = HashMap::new();
        let mut frames: Vec<u64> = Vec::new();
        let mut rest = vec![(0_usize, 0_u64)];
        while let Some((index, depth)) = rest.pop() {
            let frame = &self.frames[index];
            if frame.count < least {
                continue;
            }
            let number = *numbers.entry(frame.name).or_insert_with(|| {
                let name = &self.names[frame.name];
                let mut marks = MARKS.iter();
                let plain = marks.find_map(|mark| name.strip_suffix(mark));
                names.push(visible(plain.unwrap_or(name)));
                // The first mark is for the kernel.
                let module = self.modules.get(name).map_or("", |module| module);
                modules.push(visible(module));
                kernel.push(u8::from(name.ends_with(MARKS[0])));
                names.len() - 1
            });
            frames.extend([number as u64, depth, frame.count]);
            let mut children: Vec<usize> = frame.children.values().copied().collect();
            children.sort_by_key(|child| &self.names[self.frames[*child].name]);
            rest.extend(children.into_iter().rev().map(|child| (child, depth + 1)));
        }
        let document = json!({
            "names": names,
            "kernel": kernel,
            "modules": modules,
            "left_out": self.frames.len() - frames.len() / 3,
            "frames": frames,
        });
        // Only `<` could end a script element.
        document.to_string().replace('<', "\\u003c")
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn json(lines: &[&str]) -> Value {
        let lines: Vec<String> = lines.iter().map(|line| (*line).to_owned()).collect();
        serde_json::from_str(&Flames::new(&lines).json()).unwrap()
    }

    #[test]
    fn stacks_become_a_tree() {
        let document = json(&["p;b_[k];c_[k] 2", "p;b_[k] 1", "p;a 4", "nonsense"]);
        assert_eq!(document["names"], json!(["all", "p", "a", "b", "c"]));
        assert_eq!(document["kernel"], json!([0, 0, 0, 1, 1]));
        assert_eq!(
            document["frames"],
            json!([0, 0, 7, 1, 1, 7, 2, 2, 4, 3, 2, 3, 4, 3, 2])
        );
        assert_eq!(document["left_out"], 0);
    }

    #[test]
    fn no_name_ends_the_script() {
        let lines = ["</script><script>alert(1)</script>\x1b 1".to_owned()];
        let text = Flames::new(&lines).json();
        assert!(!text.contains('<'), "{text}");
        let document: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(document["names"][1], "</script><script>alert(1)</script>�");
    }

    #[test]
    fn the_largest_frames_are_kept() {
        let lines: Vec<String> = (0..30_000)
            .map(|index| format!("p;f{index} {}", 1 + index % 5))
            .collect();
        let document: Value = serde_json::from_str(&Flames::new(&lines).json()).unwrap();
        let frames = document["frames"].as_array().unwrap();
        assert_eq!(frames.len() / 3, 18_002);
        assert_eq!(document["left_out"], 12_000);
    }
}
