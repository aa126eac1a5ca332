//! The rows of the ground truth, and the row of a sample.

use crate::function_at;

/// A vCPU's mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    /// Running a process in user mode.
    User,
    /// In the kernel.
    Kernel,
    /// In the kernel, servicing an interrupt.
    Interrupt,
    /// Halted.
    Idle,
}

/// An activity of the guest with its own count of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// The vCPU's mode.
    pub mode: Mode,
    /// The current process; `None` if it can be any.
    pub pid: Option<i32>,
    /// The process's group.
    pub process_group: Option<i32>,
    /// The process's name, or what the kernel does.
    pub name: &'static str,
    /// The functions with the program counter, if rows differ only by these.
    pub functions: &'static [&'static str],
}

const fn process(pid: i32, process_group: i32, name: &'static str) -> Row {
    Row {
        mode: Mode::User,
        pid: Some(pid),
        process_group: Some(process_group),
        name,
        functions: &[],
    }
}

// The order is that of `enum row` in image/kernel.h.
static ROWS: [Row; crate::ROWS] = [
    process(101, 100, "weaver"),
    process(102, 100, "spinner"),
    process(103, 100, "carder"),
    process(201, 200, "dyer"),
    Row {
        mode: Mode::Kernel,
        functions: &["compute"],
        ..process(102, 100, "system call")
    },
    Row {
        mode: Mode::Kernel,
        functions: &["stretch_with_interrupts_off"],
        ..process(103, 100, "interrupts off")
    },
    Row {
        mode: Mode::Interrupt,
        pid: None,
        process_group: None,
        name: "timer interrupt",
        functions: &[],
    },
    Row {
        mode: Mode::Kernel,
        pid: None,
        process_group: None,
        name: "switching",
        functions: &[],
    },
    Row {
        mode: Mode::Idle,
        pid: Some(0),
        process_group: Some(0),
        name: "idle",
        functions: &[],
    },
];

const INTERRUPT: usize = 6;
const SWITCHING: usize = 7;
const IDLE: usize = 8;

/// The rows, in the order of [`crate::VcpuTruth::cycles`].
pub fn rows() -> &'static [Row; crate::ROWS] {
    &ROWS
}

/// The row of a sample of the demo guest; `None` if it isn't the demo guest's (user mode with an unknown pid).
///
/// Kernel time outside the functions of other rows is "switching": entry code, scheduling, start-up.
pub fn row_of(mode: Mode, pid: i32, pc: u64) -> Option<usize> {
    match mode {
        Mode::User => ROWS
            .iter()
            .position(|row| row.mode == Mode::User && row.pid == Some(pid)),
        Mode::Interrupt => Some(INTERRUPT),
        Mode::Idle => Some(IDLE),
        Mode::Kernel => {
            let function = function_at(pc).unwrap_or_default();
            let row = ROWS
                .iter()
                .position(|row| row.functions.contains(&function));
            Some(row.unwrap_or(SWITCHING))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::symbol;

    #[test]
    fn every_function_of_a_row_is_in_the_image_and_leads_to_its_row() {
        for (index, row) in rows().iter().enumerate() {
            for name in row.functions {
                let function = symbol(name).unwrap_or_else(|| panic!("{name} is not in the image"));
                assert_eq!(row_of(row.mode, 1, function.address), Some(index), "{name}");
            }
        }
    }

    #[test]
    fn rows_of_user_samples_follow_from_pids_and_others_from_modes() {
        for (index, row) in rows().iter().enumerate() {
            if row.mode != Mode::Kernel {
                assert_eq!(row_of(row.mode, row.pid.unwrap_or(77), 0), Some(index));
            }
        }
        assert_eq!(row_of(Mode::User, 7, 0), None);
        assert_eq!(row_of(Mode::Kernel, 101, 0), Some(SWITCHING));
        let entry = symbol("system_call_entry").unwrap();
        assert_eq!(row_of(Mode::Kernel, 101, entry.address), Some(SWITCHING));
    }

    #[test]
    fn the_constants_name_the_right_rows() {
        assert_eq!(rows()[INTERRUPT].mode, Mode::Interrupt);
        assert_eq!(rows()[SWITCHING].name, "switching");
        assert_eq!(rows()[IDLE].mode, Mode::Idle);
    }
}
