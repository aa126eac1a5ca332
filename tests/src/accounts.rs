//! The ledgers in the status document.

use kvmprof_abi::pcs::Ledger;
use kvmprof_client::Connection;
use kvmprof_recording::ClockLedger;
use serde_json::Value;

use crate::status::status_of;

/// All accounts of one status document.
#[derive(Clone, Debug, PartialEq)]
pub struct Accounts {
    /// The sum of the clock's accounts.
    pub clock: ClockLedger,
    /// The clock's accounts, by vCPU.
    pub vcpus: Vec<ClockLedger>,
    /// The account of pcs.
    pub pcs: Ledger,
    /// Whether a client has pcs open.
    pub open: bool,
    /// Whether the clock runs.
    pub running: bool,
    /// Whether the vCPUs wait for a consumer.
    pub held: bool,
}

impl Accounts {
    /// The present accounts.
    ///
    /// # Panics
    /// If the status document lacks one.
    pub fn of(connection: &Connection) -> Self {
        let status = status_of(connection);
        let pcs = status.pcs().unwrap();
        Self {
            pcs: pcs.ledger,
            open: pcs.open,
            clock: status.clock.ledger,
            vcpus: status.clock.vcpus,
            running: status.clock.running,
            held: status.machine.held,
        }
    }

    /// Checks every identity of the design and of the pages.
    ///
    /// # Panics
    /// If one doesn't hold.
    #[track_caller]
    pub fn check(&self) {
        assert!(self.pcs.balances(), "{self:?}");
        assert!(self.clock.balances(), "{self:?}");
        assert!(self.vcpus.iter().all(ClockLedger::balances), "{self:?}");
        assert_eq!(self.vcpus.iter().copied().sum::<ClockLedger>(), self.clock);
    }
}

/// A consumer's ledger from the JSON report of pcstat or demo: an object with the ledger's parts, and perhaps other members.
///
/// # Panics
/// If a part is missing.
pub fn ledger_of(object: &Value) -> Ledger {
    let part = |name: &str| {
        object[name]
            .as_u64()
            .unwrap_or_else(|| panic!("no {name} in {object}"))
    };
    Ledger {
        ticks: part("ticks"),
        recorded: part("recorded"),
        merged: part("merged"),
        ungathered: part("ungathered"),
        stolen: part("stolen"),
        lost: part("lost"),
        pending: part("pending"),
        discarded: part("discarded"),
    }
}
