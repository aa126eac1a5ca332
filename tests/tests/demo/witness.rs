//! The demo guest stores its current row at all times. A sample taken at another place than its registers say would have another row than its program
//! counter.

use std::ffi::OsStr;

use kvmprof_demo_guest::{IMAGE, Mode, function_at, process_of, rows};
use kvmprof_recording::{Mode as SampleMode, Sample};
use kvmprof_tests::{Boot, Guest, clocks_for_demo, on_kvm, recorded, sampling_rate};

/// The row whose function contains the program counter; `None` for code between rows.
fn row_by_function(sample: &Sample) -> Option<usize> {
    let function = function_at(sample.pc)?;
    if function == "service_interrupt" {
        return rows().iter().position(|row| row.mode == Mode::Interrupt);
    }
    rows().iter().position(|row| match row.mode {
        Mode::User => sample.mode == SampleMode::User && row.pid == process_of(function),
        _ => row.functions.contains(&function),
    })
}

/// The location of the pid is that of the guest's current row: it is read at each tick, like a pid.
#[test]
fn each_sample_is_in_the_guests_current_row() {
    on_kvm(|| {
        let place = format!("absolute:{:#x}:8", IMAGE.row_place(0).unwrap());
        let hz = sampling_rate(1000).to_string();
        for clock in clocks_for_demo() {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("recording");
            let words = [
                "--pid-at", &place, "--hz", &hz, "--clock", clock, "--record",
            ];
            let options = words.iter().map(OsStr::new).chain([path.as_os_str()]);
            let guest = Guest::start(Boot::Demo, options);
            guest.until_recorded(2000);
            guest.stop();
            let (samples, _) = recorded(&path);
            let mut seen = vec![0; rows().len()];
            // In an interrupt the host's kernel can't wait for a page that is being moved: that sample has no process.
            let unread = samples.iter().filter(|sample| sample.pid == -1).count();
            let most = usize::from(clock == "kernel") * samples.len() / 100;
            assert!(unread <= most, "{clock}: {unread} of {}", samples.len());
            for sample in samples.iter().filter(|sample| sample.pid != -1) {
                if let Some(row) = row_by_function(sample) {
                    assert_eq!(i32::try_from(row), Ok(sample.pid), "{sample:x?}");
                    seen[row] += 1;
                }
            }
            println!("{clock}: {seen:?} of {}", samples.len());
            for (row, count) in rows().iter().zip(seen) {
                let has_functions = !matches!(row.mode, Mode::Idle) && row.name != "switching";
                assert!(count > 0 || !has_functions, "{}", row.name);
            }
        }
    });
}
