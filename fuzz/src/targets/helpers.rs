//! What one process of kvmprof writes to another: requests for captures, which a process without rights makes to the one that opens their files, and the
//! names of a guest, which a process that has parsed its memory has found. What decodes is written as what decodes to the same.

use kvmprof_introspection::{
    LinearMap, ProcessPlaces, TaskMemory, TaskPointer, ValueAt, ValueKind, ValuePlace,
};
use kvmprof_profiling::kernel_capture::rewritten_request;
use kvmprof_vmm::attached::GuestNames;
use vm_memory::GuestAddress;

/// Maximum number of memory slots and maps in what is accepted, and of values that a sample has.
const MAX_RANGES: usize = 64;

/// Decodes the bytes as each of the two.
pub fn run(data: &[u8]) {
    if let Some(request) = rewritten_request(data) {
        assert!(request.len() <= data.len());
        assert_eq!(rewritten_request(&request).as_ref(), Some(&request));
    }
    if let Some(names) = GuestNames::read(data) {
        for (_, places) in &names.places {
            assert!(places.values.len() <= ProcessPlaces::MAX);
            assert!(places.task.iter().all(|task| task.maps.len() <= MAX_RANGES));
        }
        assert_eq!(GuestNames::read(&written(&names)), Some(names));
    }
}

fn written(names: &GuestNames) -> Vec<u8> {
    let mut bytes = Vec::new();
    names.write(&mut bytes).unwrap();
    bytes
}

/// A guest's names, with and without places, and requests by each kind of clock.
pub fn seeds() -> Vec<(&'static str, Vec<u8>)> {
    let value = |kind, at| ValuePlace { kind, at, width: 4 };
    let places = ProcessPlaces {
        task: Some(TaskPointer {
            memory: Some(TaskMemory {
                mm: 0x900,
                page_tables: 0x78,
                stack: Some(0x20),
                direct_map: 0xffff_8880_0000_0000,
            }),
            at: GuestAddress(0x2_0000),
            maps: vec![LinearMap {
                address: 0xffff_8880_0000_0000,
                physical: GuestAddress(0),
                bytes: 64 << 20,
            }],
        }),
        values: vec![
            value(ValueKind::Pid, ValueAt::Task(0x9f4)),
            value(
                ValueKind::PreemptCount(1, 2),
                ValueAt::Physical(GuestAddress(0x3000)),
            ),
        ],
        interrupt_stack: Some(GuestAddress(0x4000)),
        is_linux: true,
    };
    let names = |places| GuestNames {
        functions: "ffffffff81000000 T _stext\n".to_owned(),
        containers: [(7, "4f1d".to_owned()), (8, String::new())].into(),
        places,
    };
    let nameless = written(&names(Vec::new()));
    let of_one = written(&names(vec![(0, places.clone())])).len() - nameless.len();
    let named = written(&names(vec![(0, places.clone()), (1, places)]));
    // Behind the number of words and the number of vCPUs come a vCPU's number, and its places.
    let first = &named[24..16 + of_one];
    let request = |kind: u64, places: &[u8]| {
        // The VM, host stacks, the vCPU and its thread, the clock, both stacks, a slot, and whether there are places.
        let slot = [0, 0x10_0000, 0x7f00_0000_0000, 0];
        let head = [5, 1, 7, 1234, kind, 1_000_000, 3, 1];
        let words = head.into_iter().chain(slot);
        let words = words.chain([u64::from(!places.is_empty())]);
        let mut bytes: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
        bytes.extend(places);
        assert!(rewritten_request(&bytes).is_some());
        bytes
    };
    vec![
        ("names", named.clone()),
        ("functions", nameless),
        ("by-time", request(0, first)),
        ("by-exits", request(1, first)),
        ("by-faults", request(2, &[])),
    ]
}
