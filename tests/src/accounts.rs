//! The ledgers in the status document.

use kvmprof_abi::pcs::Ledger;
use kvmprof_client::Connection;
use serde_json::Value;

use crate::guest::status_of;

/// The clock's account, of one vCPU or of all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClockAccount {
    /// All ticks since the clock first ran.
    pub ticks: u64,
    /// Ticks that were captured.
    pub sampled: u64,
    /// Ticks counted as idle.
    pub idle: u64,
    /// Ticks that the host took.
    pub stolen: u64,
    /// Ticks missed for another reason.
    pub lost: u64,
}

/// All accounts of one status document.
#[derive(Clone, Debug, PartialEq)]
pub struct Accounts {
    /// The clock's, summed.
    pub clock: ClockAccount,
    /// The clock's, by vCPU.
    pub vcpus: Vec<ClockAccount>,
    /// That of pcs.
    pub pcs: Ledger,
    /// Whether somebody has pcs open.
    pub open: bool,
    /// Whether the clock runs.
    pub running: bool,
    /// Whether the vCPUs wait for a consumer.
    pub held: bool,
}

impl ClockAccount {
    fn of(ledger: &Value) -> Self {
        let field = |name: &str| ledger[name].as_u64().unwrap();
        Self {
            ticks: field("ticks"),
            sampled: field("sampled"),
            idle: field("idle"),
            stolen: field("stolen"),
            lost: field("lost"),
        }
    }

    /// Whether every tick is accounted for.
    pub fn balances(&self) -> bool {
        self.ticks == self.sampled + self.idle + self.stolen + self.lost
    }

    /// What was added since an earlier look.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            ticks: self.ticks - earlier.ticks,
            sampled: self.sampled - earlier.sampled,
            idle: self.idle - earlier.idle,
            stolen: self.stolen - earlier.stolen,
            lost: self.lost - earlier.lost,
        }
    }
}

impl Accounts {
    /// The accounts as they are now.
    ///
    /// # Panics
    /// When the status document lacks one.
    pub fn of(connection: &Connection) -> Self {
        let status = status_of(connection);
        let clock = &status["clock"];
        let pcs = &status["consumers"][0];
        assert_eq!(pcs["name"], "pcs");
        Self {
            clock: ClockAccount::of(&clock["ledger"]),
            vcpus: clock["vcpus"]
                .as_array()
                .unwrap()
                .iter()
                .map(ClockAccount::of)
                .collect(),
            pcs: ledger_of(&pcs["ledger"]),
            open: pcs["open"].as_bool().unwrap(),
            running: clock["running"].as_bool().unwrap(),
            held: status["machine"]["held"].as_bool().unwrap(),
        }
    }

    /// Checks every identity of design and page.
    ///
    /// # Panics
    /// When one doesn't hold.
    #[track_caller]
    pub fn check(&self) {
        assert!(self.pcs.balances(), "{self:?}");
        assert!(self.clock.balances(), "{self:?}");
        let mut sum = ClockAccount::default();
        for vcpu in &self.vcpus {
            assert!(vcpu.balances(), "{self:?}");
            sum.ticks += vcpu.ticks;
            sum.sampled += vcpu.sampled;
            sum.idle += vcpu.idle;
            sum.stolen += vcpu.stolen;
            sum.lost += vcpu.lost;
        }
        assert_eq!(sum, self.clock);
    }
}

/// A consumer's ledger out of a JSON object that has its parts, and maybe others.
///
/// # Panics
/// When one is missing.
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
