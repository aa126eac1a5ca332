//! profil(2) and pcsample(2) of a process and of what is forked from it, with memory that isn't there, or not yet.

use kvmprof_abi::profil::{Call, Function, MAX_RANGES, Range, State};
use kvmprof_devices::profiling::profil::{
    Blocked, KeptProfile, MAX_WAITING, ProcessMemory, Profile, turns_on,
};

use super::endpoint::ticks;
use crate::input::{Input, block};

/// Steps of one input.
const MAX_STEPS: usize = 400;
/// Profiles at a time: a process, and those that are forked from it.
const MAX_PROFILES: usize = 8;
const VCPUS: usize = 2;
const HZ: u32 = 250;

/// Memory whose pages come and go.
#[derive(Default)]
struct Pages {
    /// A bit for each page that a store can be made to now.
    present: u64,
    /// A bit for each page that the process can't write.
    forbidden: u64,
    counts: u16,
}

impl Pages {
    fn look(&self, address: u64) -> Result<(), Blocked> {
        let page = 1 << (address >> 12 & 63);
        if self.forbidden & page != 0 {
            Err(Blocked::Fault)
        } else if self.present & page != 0 {
            Ok(())
        } else {
            Err(Blocked::NotYet)
        }
    }
}

impl ProcessMemory for Pages {
    fn update_count(
        &mut self,
        address: u64,
        change: &mut dyn FnMut(u16) -> Option<u16>,
    ) -> Result<(), Blocked> {
        self.look(address)?;
        if let Some(count) = change(self.counts) {
            self.counts = count;
        }
        Ok(())
    }

    fn store_word(&mut self, address: u64, _word: u64) -> Result<(), Blocked> {
        self.look(address)
    }
}

/// Every tick is in exactly one account, and what waits is bounded.
fn check(profile: &Profile) {
    let status = profile.status();
    let sum = status.stored + status.outside + status.waiting + status.lost;
    assert_eq!(status.ticks, sum, "{status:?}");
    assert!(status.waiting <= MAX_WAITING as u64, "{status:?}");
    assert!(profile.is_on() || status.waiting == 0, "{status:?}");
}

/// What a process calls, and where its ticks find it.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let mut pages = Pages::default();
    let mut profiles = vec![Profile::default()];
    let mut kept: Option<KeptProfile> = None;
    for _ in 0..MAX_STEPS {
        if input.is_empty() {
            break;
        }
        let step = input.u8();
        let index = usize::from(step >> 4) % profiles.len();
        let profile = &mut profiles[index];
        match step % 8 {
            0 => call(profile, &mut kept, &mut input),
            1 | 2 => profile.tick(input.u64(), &mut pages),
            3 => {
                pages.present = input.u64();
                pages.forbidden = input.u64();
                pages.counts = input.u16();
            }
            4 => profile.try_waiting(&mut pages),
            5 => {
                let states = State::ALL;
                let state = states[usize::from(input.u8()) % states.len()];
                // It is on by a call only.
                if state != State::On {
                    profile.end(state);
                }
            }
            6 if profile.is_on() && profiles.len() < MAX_PROFILES => {
                let fork = profiles[index].fork();
                profiles.push(fork);
            }
            _ => {
                let ticks = ticks(&mut input);
                if let Some(kept) = &mut kept {
                    kept.feed(&ticks);
                    assert!(kept.stored().len() <= kept.memory());
                }
            }
        }
        profiles.iter().for_each(check);
    }
}

fn call(profile: &mut Profile, kept: &mut Option<KeptProfile>, input: &mut Input<'_>) {
    let Some(call) = Call::decode(input.bytes(Call::SIZE)) else {
        return;
    };
    let ranges: Vec<Range> = input
        .block()
        .chunks(Range::SIZE)
        .map_while(Range::decode)
        .take(MAX_RANGES)
        .collect();
    let is_refused = turns_on(&call, &ranges).is_err();
    let before = profile.status();
    let result = profile.call(&call, &ranges);
    assert_eq!(result.is_err(), is_refused);
    if is_refused {
        assert_eq!(profile.status(), before);
    }
    if let Ok(new) = KeptProfile::new(&call, VCPUS, HZ) {
        *kept = Some(new);
    }
}

/// A call of each function, with ticks that find its memory there, not yet, and never.
pub fn seeds() -> Vec<(&'static str, Vec<u8>)> {
    let seed = |function, buffer, ranges: &[Range]| {
        let call = Call {
            function,
            flags: Call::EVERY_TICK,
            pid: 7,
            ranges: u32::try_from(ranges.len()).unwrap(),
            buffer,
            size: 64,
            offset: 0x1000,
            scale: 0x8000,
            time: 0,
            program: [1; 16],
        };
        let ranges: Vec<u8> = ranges
            .iter()
            .flat_map(|range| range.encode().to_vec())
            .collect();
        let pages = |present: u64, forbidden: u64| {
            [
                &[3][..],
                &present.to_le_bytes(),
                &forbidden.to_le_bytes(),
                &[0, 0],
            ]
            .concat()
        };
        let tick = [&[1][..], &0x1008_u64.to_le_bytes()].concat();
        [
            [&[0][..], &call.encode(), &block(&ranges)].concat(),
            pages(u64::MAX, 0),
            tick.repeat(3),
            pages(0, 0),
            tick.repeat(3),
            vec![6],
            pages(u64::MAX, 0),
            vec![4],
            tick.clone(),
            pages(0, u64::MAX),
            tick,
            // The buffer that the device keeps: a sample in user mode of this process.
            [&[7, 16, 0, 7, 7][..], &0x1008_u64.to_le_bytes()].concat(),
            vec![5, 1],
        ]
        .concat()
    };
    let range = Range {
        low: 0x1000,
        high: 0x2000,
        buffer: 0x4000,
        size: 64,
        scale: 0x8000,
    };
    vec![
        ("profil", seed(Function::Profil, 0x4000, &[])),
        ("kept", seed(Function::Profil, 0, &[])),
        ("pcsample", seed(Function::Pcsample, 0x4000, &[])),
        ("aix", seed(Function::AixProfil, 0x4000, &[])),
        ("ranges", seed(Function::AixRanges, 0, &[range, range])),
    ]
}
