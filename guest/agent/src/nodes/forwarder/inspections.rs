//! The calls that wait until their caller has been inspected.

use std::collections::HashMap;

use super::super::fragments::Owner;
use super::super::turns::Turn;
use super::Call;
use super::everybody::Command;
use super::pid_commands::PidCommand;

/// A call that waits for the inspection of its caller.
#[derive(Debug)]
pub(super) struct UninspectedCall {
    pub call: Call,
    pub operation: BegunOperation,
}

/// How the call continues after the inspection.
#[derive(Debug)]
pub(super) enum BegunOperation {
    /// A write of which only the first piece is known yet.
    Write { owner: Owner, piece: Vec<u8> },
    /// A command that names processes.
    PidCommand(PidCommand),
    /// A command of a node for everybody, whose data is found out.
    Command(Command),
}

/// An inspection that hasn't ended.
#[derive(Debug)]
struct PendingInspection {
    /// `None` if nobody waits for the result any more.
    beginning: Option<UninspectedCall>,
    /// The turn of a call of a node for everybody. It ends with the inspection, or with the call that continues after it.
    turn: Option<Turn>,
}

/// All inspections, by their numbers.
#[derive(Debug, Default)]
pub(super) struct Inspections {
    last: u64,
    begun: HashMap<u64, PendingInspection>,
}

impl Inspections {
    /// Adds an inspection, for which a call waits. Returns its number.
    pub fn add(&mut self, beginning: UninspectedCall, turn: Option<Turn>) -> u64 {
        self.last += 1;
        let inspected = PendingInspection {
            beginning: Some(beginning),
            turn,
        };
        self.begun.insert(self.last, inspected);
        self.last
    }

    /// Ends an inspection. Returns the call that waited for it, and its turn.
    pub fn end(&mut self, number: u64) -> Option<(UninspectedCall, Option<Turn>)> {
        let PendingInspection { beginning, turn } = self.begun.remove(&number)?;
        Some((beginning?, turn))
    }

    /// Takes the calls that are `chosen`: they don't wait any more.
    pub fn take_if(&mut self, chosen: impl Fn(&Call) -> bool) -> Vec<Call> {
        let begun = self.begun.values_mut();
        let taken = begun.filter_map(|inspected| {
            let beginning = &mut inspected.beginning;
            beginning.take_if(|beginning| chosen(&beginning.call))
        });
        taken.map(|beginning| beginning.call).collect()
    }
}
