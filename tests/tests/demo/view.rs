//! `kvmprof view --live` of the demo guest; kvmprof/tests/command_line/live.rs shows its page in a browser.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;

use kvmprof_tests::{Boot, Guest, interrupt, on_kvm, until};
use serde_json::Value;

/// The page at this address.
fn page(address: &str) -> String {
    let rest = address.strip_prefix("http://").unwrap();
    let (host, path) = rest.split_at(rest.find('/').unwrap());
    let mut stream = TcpStream::connect(host).unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut page = String::new();
    stream.read_to_string(&mut page).unwrap();
    page
}

/// The data of its script.
fn data(page: &str) -> Value {
    let (_, rest) = page.split_once("id=data>").unwrap();
    serde_json::from_str(rest.split_once("</script>").unwrap().0).unwrap()
}

#[test]
fn a_live_page_grows_until_its_guest_ends() {
    on_kvm(|| {
        let guest = Guest::start(Boot::Demo, ["--hz", "1000", "--cpus", "2", "--jitter"]);
        let mut view = guest.spawn_command(&["view", "--live", "--no-open"]);
        let mut line = String::new();
        let mut output = BufReader::new(view.stdout.take().unwrap());
        output.read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("page: ").unwrap();
        let first = data(&page(address));
        let later = until("the page grows", || {
            let later = data(&page(address));
            (later["length"].as_u64() > first["length"].as_u64()).then_some(later)
        });
        let pids = later["processes"]["pid"].as_array().unwrap();
        assert!(pids.contains(&101.into()), "{pids:?}");
        assert!(page(address).contains("<body data-live=\"\">"));
        guest.stop();
        until("the page says that the guest has ended", || {
            page(address)
                .contains("<body data-live=\"The guest has ended")
                .then_some(())
        });
        assert_eq!(interrupt(view).status, 0);
    });
}
