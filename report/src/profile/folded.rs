//! Folded stacks: one line for each different stack, frames from the outermost in, `;` between them, and how many
//! samples (<https://github.com/brendangregg/FlameGraph>).

use std::collections::BTreeMap;

use super::Profile;
use super::functions::{HALTED, frame_name};

/// Marks frames of the kernel, as flame graphs know it.
const KERNEL: &str = "_[k]";
/// Stands for the frames that are missing at a stack's outer end.
pub const CUT_SHORT: &str = "[cut short]";

/// The folded stacks of `profile`, each under its process, in alphabetical order.
pub fn folded(profile: &Profile) -> Vec<String> {
    let mut lines: BTreeMap<String, u64> = BTreeMap::new();
    for ((pid, stack), count) in &profile.stacks {
        let mut line = root(profile, *pid);
        if stack.is_cut_short() {
            line.push(';');
            line.push_str(CUT_SHORT);
        }
        for index in (0..stack.frames.len()).rev() {
            line.push(';');
            line.push_str(&plain(&frame_name(&profile.symbols, stack, index)));
            if stack.is_kernel(index) {
                line.push_str(KERNEL);
            }
        }
        *lines.entry(line).or_default() += count;
    }
    if profile.idle > 0 {
        let line = format!("{};{HALTED}", root(profile, 0));
        *lines.entry(line).or_default() += profile.idle;
    }
    lines
        .into_iter()
        .map(|(line, count)| format!("{line} {count}"))
        .collect()
}

fn root(profile: &Profile, pid: i32) -> String {
    let name = profile.processes.get(&pid).map(|process| &process.name);
    match name {
        Some(name) if !name.is_empty() => format!("{}-{pid}", plain(name)),
        _ => format!("pid-{pid}"),
    }
}

/// `name` without what parts frames.
fn plain(name: &str) -> String {
    name.replace([';', '\n'], ":")
}

#[cfg(test)]
mod tests {
    use super::super::collect::testing::profile;
    use super::*;

    #[test]
    fn stacks_are_folded_under_their_processes() {
        assert_eq!(
            folded(&profile(&[])),
            [
                "main:one-7;0x40 1",
                "main:one-7;[cut short];0x50;entry_[k];entry_[k];copy_[k] 2",
                "other-8;entry_[k] 1",
                "pid-0;[halted] 2",
            ]
        );
    }
}
