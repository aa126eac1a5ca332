//! The command line: words that options take, and whole lines. The first byte chooses: a line has one word in each line of
//! text.

use std::ffi::OsString;
use std::str::FromStr;

use kvmprof_cli::command_line::value;
use kvmprof_introspection::PidAt;
use kvmprof_machine::console::Console;
use kvmprof_machine::disk::DiskOptions;
use kvmprof_machine::network::{MacAddress, NetworkConfig};
use kvmprof_machine::share::ShareOptions;
use kvmprof_machine::virtio::GuestAccess;
use kvmprof_machine::vsock::VsockConfig;
use kvmprof_profiling::clock::ClockSource;
use kvmprof_recording::SamplingEvent;
use kvmprof_report::profile::TimeRange;

/// Parses the text as each of them.
pub fn run(data: &[u8]) {
    let Some((choice, text)) = data.split_first() else {
        return;
    };
    let text = String::from_utf8_lossy(text);
    if choice % 2 == 1 {
        let words = ["kvmprof"].into_iter().chain(text.lines());
        let words: Vec<OsString> = words.map(OsString::from).collect();
        if let Err(error) = kvmprof::commands::check(&words) {
            error.to_string();
        }
        return;
    }
    for parser in [
        value::seconds,
        value::seconds_of_a_day,
        value::seconds_of_an_hour,
        value::minutes,
    ] {
        if let Ok(time) = parser(&text) {
            assert!(!time.is_zero());
        }
    }
    let _refused = kvmprof_recording::parse_pid(&text);
    let _refused = value::rate(&text);
    let _refused = value::rate_or_none(&text);
    let _refused = PidAt::parse(&text);
    parse::<SamplingEvent>(&text);
    parse::<TimeRange>(&text);
    parse::<ClockSource>(&text);
    parse::<Console>(&text);
    parse::<DiskOptions>(&text);
    parse::<MacAddress>(&text);
    parse::<NetworkConfig>(&text);
    parse::<ShareOptions>(&text);
    parse::<GuestAccess>(&text);
    parse::<VsockConfig>(&text);
}

fn parse<T: FromStr>(text: &str) {
    let _refused = T::from_str(text);
}

/// Words and lines as the pages have them.
pub fn seeds() -> Vec<(&'static str, Vec<u8>)> {
    let word = |text: &str| format!("\0{text}").into_bytes();
    let line = |text: &str| format!("\x01{}", text.replace(' ', "\n")).into_bytes();
    vec![
        ("seconds", word("1.5")),
        ("range", word("0.5:2")),
        ("event", word("exits:100")),
        ("time-event", word("guest-time:1ms")),
        ("pid-at", word("gs:0x10,0x8:4")),
        ("disk", word("disk.qcow2,format=qcow2,readonly,queues=2")),
        (
            "net",
            word("stream=/run/passt.socket,mac=02:00:00:00:00:01"),
        ),
        ("vsock", word("/tmp/vsock,cid=3")),
        ("share", word("/srv,tag=srv,readonly")),
        ("access", word("pcs,prf")),
        ("console", word("file:/tmp/console")),
        (
            "run",
            line(
                "run --kernel bzImage --memory 512M,hugepages=2M --cpus 2 --hz 1000 --record out.kvmprof",
            ),
        ),
        (
            "record",
            line("record --stacks kernel,user --event exits:100 --time 2 out.kvmprof"),
        ),
        (
            "report",
            line("report out.kvmprof --by process,function --time 1:2 --top 5"),
        ),
        (
            "profil",
            line("profil --pid 7 --offset 0x401000 --scale 65536"),
        ),
        ("getpc", line("getpc -k -l 1,2,3 out")),
    ]
}
