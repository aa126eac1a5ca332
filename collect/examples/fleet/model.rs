//! Computes what each guest does in each window. So each tick is known without the files.

use kvmprof_collect::batch::{Batch, Function, IDLE, Row, Tables, Window};
use kvmprof_recording::Mode;
use kvmprof_recording::file::Account;

use super::Arguments;
use super::truth::KnownTicks;
use super::work::{Growth, Program, Work};

/// Noon of 2026-03-01, in s since 1970: 24 hours from then on have two dates.
const BEGIN: u64 = 1_772_366_400;
/// The start of the second date, in s since 1970.
const MIDNIGHT: u64 = 1_772_409_600;
/// The rate of the clocks: ticks a second on each vCPU.
pub const HZ: u32 = 19;
const VCPUS: u64 = 2;
/// One of this number of hosts has more interrupts on the second date, and another one waits longer for a lock with interrupts off. The two
/// constants below have their remainders.
const GROWN: usize = 50;
const MORE_INTERRUPTS: usize = 7;
const LONGER_WAITS: usize = 13;
/// On one of this number of hosts the kernel takes the samples: it isn't known when interrupts are off.
const UNKNOWN: usize = 10;

/// What ticks are counted by: a program's thread in a mode with a stack.
pub struct Kind {
    program: &'static Program,
    pub mode: Mode,
    /// The functions of the stack, innermost first, and their modules.
    pub stack: &'static [&'static str],
    modules: Vec<&'static str>,
    /// The place in the stack where one of the program's leaves is inserted: another one each time. No query asks for it.
    between: usize,
    weight: u64,
    off_percent: u64,
    growth: Option<Growth>,
}

/// The kinds of each role.
pub fn kinds(work: &'static Work) -> Vec<Vec<Kind>> {
    let roles = work.roles.iter();
    roles.map(|role| of_role(&role.programs, work)).collect()
}

fn of_role(programs: &'static [Program], work: &'static Work) -> Vec<Kind> {
    let mut kinds = Vec::new();
    for (number, program) in (0..).zip(programs) {
        for (place, leaf) in (0..).zip(&program.leaves) {
            let (stack, modules) = program.called_by([(leaf.as_str(), program.process.as_str())]);
            kinds.push(Kind {
                program,
                mode: Mode::User,
                stack,
                modules,
                between: 1,
                weight: 3 + (17 * (number + 1) + 5 * place) % 23,
                off_percent: 0,
                growth: None,
            });
        }
    }
    for (path, program) in work.paths.iter().zip(programs.iter().cycle()) {
        let (stack, modules) = program.called_by(path.frames());
        kinds.push(Kind {
            program,
            mode: path.mode(),
            stack,
            modules,
            between: path.functions.len(),
            weight: path.weight,
            off_percent: path.off_percent,
            growth: path.growth,
        });
    }
    kinds
}

impl Kind {
    /// The frames of its stack. `chance` chooses the function that is inserted.
    fn frames(&self, chance: u64, tables: &mut Tables) -> Vec<u32> {
        let frames = self.stack.iter().copied();
        let frames = frames.zip(self.modules.iter().copied());
        let mut frames: Vec<(&str, &str)> = frames.collect();
        let leaves = &self.program.leaves;
        let leaf = &leaves[usize::from(chance.to_le_bytes()[0]) % leaves.len()];
        frames.insert(self.between, (leaf, &self.program.process));
        let frames = frames.into_iter();
        frames
            .map(|(name, module)| {
                tables.frame(&Function {
                    name,
                    module,
                    build_id: "",
                    is_kernel: module.starts_with('['),
                })
            })
            .collect()
    }
}

/// A hash of two numbers (the last step of SplitMix64).
fn mixed(one: u64, other: u64) -> u64 {
    let mut mixed =
        one.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ other.wrapping_mul(0xd6e8_feb8_6659_fd93);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// The ticks of a guest on a date.
#[derive(Clone)]
struct Sums {
    /// For each kind, the ticks, and how many of them had interrupts off.
    kinds: Vec<(u64, u64)>,
    idle: u64,
}

impl Sums {
    fn new(kinds: usize) -> Self {
        Self {
            kinds: vec![(0, 0); kinds],
            idle: 0,
        }
    }
}

/// A host, whose batches are computed.
pub struct Host<'a> {
    pub arguments: &'a Arguments,
    pub work: &'static Work,
    pub kinds: &'a [Vec<Kind>],
    pub number: usize,
}

impl Host<'_> {
    fn kernel(&self, day: usize) -> &'static str {
        match (self.number % 5, day) {
            // Every fifth host has an old kernel.
            (4, _) => "6.1.158",
            (1 | 3, 1) => "6.12.2",
            _ => "6.12.1",
        }
    }

    /// The ticks of each kind of a guest in the window that begins at `start`, and the idle ones.
    fn ticks(&self, guest: usize, start: u64) -> (Vec<u64>, u64) {
        let day = day(start);
        let all = u64::from(HZ) * VCPUS * u64::from(self.arguments.window);
        let identity = (self.number * self.arguments.guests + guest) as u64;
        // 30 to 59 % of the time by the guest, and 0 to 10 % more by the hour.
        let load = 30 + mixed(identity, 0) % 30 + mixed(identity, 1 + start / 3600) % 11;
        let kinds = &self.kinds[self.role(guest)];
        let weights: u64 = kinds.iter().map(|kind| kind.weight).sum();
        let mut left = all;
        let ticks: Vec<u64> = kinds
            .iter()
            .zip(0..)
            .map(|(kind, number)| {
                let more = match kind.growth {
                    Some(Growth::NewKernel) if self.kernel(day) == "6.12.2" => {
                        self.arguments.regression
                    }
                    Some(Growth::Lock) if day == 1 && self.number % GROWN == LONGER_WAITS => {
                        self.arguments.interrupts
                    }
                    Some(Growth::Interrupts)
                        if day == 1 && self.number % GROWN == MORE_INTERRUPTS =>
                    {
                        self.arguments.interrupts
                    }
                    _ => 0,
                };
                let weight = kind.weight * (100 + more);
                let ticks = all * load * weight / (weights * 100 * 100)
                    + mixed(identity ^ start, number) % 3;
                let ticks = ticks.max(1).min(left);
                left -= ticks;
                ticks
            })
            .collect();
        (ticks, left)
    }

    /// How many of a kind's ticks had interrupts off; `None` if that isn't known on this host.
    fn interrupts_off(&self, kind: &Kind, ticks: u64) -> Option<u64> {
        self.knows_interrupts()
            .then_some(ticks * kind.off_percent / 100)
    }

    /// The user of a process: root, but on every other host one of two others.
    fn user(&self, process: &str) -> &'static str {
        match (self.number % 2, process.len() % 2) {
            (0, _) => "0",
            (_, 0) => "101",
            _ => "102",
        }
    }

    fn knows_interrupts(&self) -> bool {
        self.number % UNKNOWN != UNKNOWN - 1
    }

    fn role(&self, guest: usize) -> usize {
        (self.number + guest) % self.work.roles.len()
    }

    /// All batches of this host, and what is known of their ticks.
    pub fn batches(&self) -> (Vec<Batch>, Vec<KnownTicks>) {
        let window = u64::from(self.arguments.window);
        let guests = self.arguments.guests;
        let mut sums: Vec<Sums> = vec![Sums::new(self.kinds[0].len()); guests * 2];
        let starts =
            (BEGIN..BEGIN + self.arguments.seconds).step_by(self.arguments.window as usize);
        let batches = starts
            .map(|start| {
                let mut tables = Tables::default();
                let windows = (0..guests)
                    .map(|guest| {
                        let (ticks, idle) = self.ticks(guest, start);
                        let sums = &mut sums[guest * 2 + day(start)];
                        sums.idle += idle;
                        let kinds = self.kinds[self.role(guest)].iter().zip(&ticks);
                        for ((kind, ticks), sum) in kinds.zip(&mut sums.kinds) {
                            sum.0 += ticks;
                            sum.1 += self.interrupts_off(kind, *ticks).unwrap_or_default();
                        }
                        self.window(guest, start, &ticks, idle, &mut tables)
                    })
                    .collect();
                let mut batch = Batch {
                    start,
                    length: u32::try_from(window).unwrap_or(u32::MAX),
                    boot: format!("{:016x}", mixed(self.number as u64, 7)),
                    host: host(self.number),
                    labels: [("zone".to_owned(), zone(self.number).to_owned())].into(),
                    windows,
                    ..Batch::default()
                };
                tables.into_batch(&mut batch);
                batch
            })
            .collect();
        (batches, self.known(&sums))
    }

    fn window(
        &self,
        guest: usize,
        start: u64,
        ticks: &[u64],
        idle: u64,
        tables: &mut Tables,
    ) -> Window {
        let role = self.role(guest);
        let identity = (self.number * self.arguments.guests + guest) as u64 ^ start;
        let kinds = self.kinds[role].iter().zip(ticks).zip(0..);
        let mut rows: Vec<Row> = kinds
            .map(|((kind, ticks), number)| {
                let stack = kind.frames(mixed(identity, number), tables);
                let user = [("user", self.user(&kind.program.process))];
                Row {
                    process: tables.name(&kind.program.process),
                    thread: tables.name(&kind.program.thread),
                    mode: kind.mode as u8,
                    stack: Some(tables.stack(stack)),
                    ticks: *ticks,
                    interrupts_off: self.interrupts_off(kind, *ticks),
                    labels: tables.labels(user.into_iter()),
                }
            })
            .collect();
        rows.push(Row {
            process: tables.name(IDLE),
            thread: tables.name(IDLE),
            mode: Mode::Idle as u8,
            stack: None,
            ticks: idle,
            interrupts_off: self.knows_interrupts().then_some(0),
            labels: None,
        });
        // Rows of real windows have no order either.
        rows.sort_by_cached_key(|row| {
            mixed(
                identity,
                row.ticks ^ u64::from(row.stack.unwrap_or(0)) << 20,
            )
        });
        let samples = ticks.iter().sum();
        Window {
            guest: format!(
                "{}-{}",
                self.work.roles[role].name,
                self.number * self.arguments.guests + guest
            ),
            kernel: self.kernel(day(start)).to_owned(),
            hz: HZ,
            jitter: Some(true),
            account: Account {
                ticks: samples + idle,
                samples,
                idle,
                ..Account::default()
            },
            rows,
        }
    }

    fn known(&self, sums: &[Sums]) -> Vec<KnownTicks> {
        let mut known = Vec::new();
        for (sums, number) in sums.iter().zip(0..) {
            let (guest, day) = (number / 2, number % 2);
            let one = |process, mode, stack, (ticks, off)| KnownTicks {
                day,
                host: self.number,
                kernel: self.kernel(day),
                process,
                mode,
                stack,
                ticks,
                interrupts_off: self.knows_interrupts().then_some(off),
            };
            let kinds = &self.kinds[self.role(guest)];
            known.extend(kinds.iter().zip(&sums.kinds).map(|(kind, ticks)| {
                one(kind.program.process.as_str(), kind.mode, kind.stack, *ticks)
            }));
            known.push(one(IDLE, Mode::Idle, &[], (sums.idle, 0)));
        }
        known.retain(|known| known.ticks > 0);
        known
    }
}

/// The host's name.
pub fn host(number: usize) -> String {
    format!("host-{number}")
}

fn zone(host: usize) -> &'static str {
    if host.is_multiple_of(2) {
        "north"
    } else {
        "south"
    }
}

fn day(start: u64) -> usize {
    usize::from(start >= MIDNIGHT)
}
