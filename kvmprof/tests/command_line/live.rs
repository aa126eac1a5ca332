//! `kvmprof view --live` of a guest whose recording grows when the test has it grow, in a browser.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};

use kvmprof_abi::wire::{HelloReply, Reply, ReplyFrame, Request, RequestFrame};
use kvmprof_recording::Mode;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use tempfile::TempDir;

use super::devtools::DevTools;
use super::hostile_names::USE;
use super::hostile_recording::recording;
use super::recordings::Written;
use super::{FAILURE, ProgramResult, kvmprof};

const SYMBOLS: &str = "\
ffffffff81000000 T entry_SYSCALL_64
ffffffff81001000 T ksys_read
ffffffff81002000 t copy_page
ffffffff81003000 t busiest
ffffffff81004000 T _end
";
const COPY: [u64; 3] = [
    0xffff_ffff_8100_2010,
    0xffff_ffff_8100_1010,
    0xffff_ffff_8100_0010,
];
const BUSIEST: [u64; 1] = [0xffff_ffff_8100_3010];
const WORKER: (i32, &[u8]) = (7, b"worker");

/// A recording in parts: what there is at first; then another process, which is busier and has a lower pid, and more of the first
/// one; then the rest.
fn parts() -> Vec<Vec<u8>> {
    let mut written = Written::with_symbols(SYMBOLS);
    written.samples(20, WORKER, Mode::Kernel, (&COPY, &[]));
    for function in 0..60 {
        let stack = [0x40_1000 + 0x1000 * function];
        written.samples(1, WORKER, Mode::User, (&[], &stack));
    }
    written.end_block();
    written.samples(500, (3, b"first"), Mode::Kernel, (&BUSIEST, &[]));
    written.samples(10, WORKER, Mode::Kernel, (&COPY, &[]));
    written.end_block();
    written.samples(5, WORKER, Mode::Kernel, (&COPY, &[]));
    let (bytes, blocks) = written.finish();
    let ends = blocks.iter().filter(|block| block.samples > 0);
    let mut ends: Vec<usize> = ends.map(|block| block.end).collect();
    assert_eq!(ends.len(), 3);
    ends[2] = bytes.len();
    let begins = [0, ends[0], ends[1]];
    let parts = begins.iter().zip(&ends);
    parts
        .map(|(begin, end)| bytes[*begin..*end].to_vec())
        .collect()
}

/// Answers a client of the host socket. What its recorder reads comes from `parts`; when there will be no more, the connection ends.
fn serve(mut stream: UnixStream, parts: &Receiver<Vec<u8>>) {
    let mut bytes = Vec::new();
    let mut piece = [0; 4096];
    loop {
        let Some((frame, length)) = RequestFrame::decode(&bytes).unwrap() else {
            match stream.read(&mut piece) {
                Ok(count) if count > 0 => bytes.extend_from_slice(&piece[..count]),
                _ => return,
            }
            continue;
        };
        let part;
        let reply = match frame.request {
            Request::Hello { lowest, highest } => {
                Reply::Hello(HelloReply::answer(lowest, highest, 1, 1000))
            }
            Request::Open { .. } => Reply::Open { handle: 1 },
            Request::Ioctl { .. } => Reply::Ioctl {
                value: 0,
                data: &[],
            },
            Request::Read { .. } => {
                let Ok(next) = parts.recv() else {
                    return;
                };
                part = next;
                Reply::Read { data: &part }
            }
            _ => Reply::Close,
        };
        let reply = ReplyFrame::success(frame.tag, reply);
        let mut answer = vec![0; reply.encoded_length()];
        reply.encode(&mut answer).unwrap();
        if stream.write_all(&answer).is_err() {
            return;
        }
        bytes.drain(..length);
    }
}

/// The command, and what lets the guest's recording grow: an empty part is its end.
struct Live {
    command: Child,
    parts: Sender<Vec<u8>>,
    address: String,
    folder: TempDir,
}

/// `kvmprof view --live`, and what lets its guest's recording grow.
fn view(folder: &TempDir) -> (Command, Sender<Vec<u8>>) {
    let socket = folder.path().join("guest.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    let (parts, received) = channel();
    std::thread::spawn(move || serve(listener.accept().unwrap().0, &received));
    let mut command = kvmprof(["view", "--no-open", "--live"]);
    command.arg(socket).env("TMPDIR", folder.path());
    (command, parts)
}

impl Live {
    /// A page of the recording's first part.
    fn start(first: &[u8]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (mut command, parts) = view(&folder);
        parts.send(first.to_vec()).unwrap();
        let mut command = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        let mut output = BufReader::new(command.stdout.take().unwrap());
        output.read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("page: ").unwrap().to_owned();
        Self {
            command,
            parts,
            address,
            folder,
        }
    }

    fn grow(&self, part: &[u8]) {
        self.parts.send(part.to_vec()).unwrap();
    }

    /// A browser that shows the page.
    fn browser(&self) -> DevTools {
        let mut browser = DevTools::new(self.folder.path());
        browser.open(&self.address);
        browser
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        let _ = kill_process(Pid::from_child(&self.command), Signal::INT);
        let _ = self.command.wait();
    }
}

/// What is selected, zoomed into and transformed, by names, which newer data number in another way; and how far the call tree is scrolled.
const SELECTED: &str = "(() => {
  const names = frame => frame.parent ? [...names(frame.parent), frame.name] : [];
  return [location.hash, names(selection.frame), functions.name[selection.fn], names(views.graph.zoomed), element('tree').scrollTop,
    [...document.querySelectorAll('#chips .chip > :first-child')].map(chip => chip.textContent), document.activeElement.getAttribute('aria-label')?.split(':')[0]];
})()";

#[test]
fn the_page_grows_and_keeps_what_is_selected() {
    let parts = parts();
    let live = Live::start(&parts[0]);
    let mut browser = live.browser();
    assert_eq!(browser.value("sums.total"), 80);
    browser.value(
        "change({ vcpu: '0' });
         transform('merge', { fn: functionOfKey('ksys_read|[kernel]|k'), frame: null, flames: null });
         const frame = name => [...views.graph.elements.values()].find(made => made.frame.name === name);
         zoomTo(frame('worker 7').frame);
         frame('copy_page').focus();",
    );
    let selected = browser.value(SELECTED);
    let names = json!(["worker 7", "entry_SYSCALL_64", "copy_page"]);
    assert_eq!(selected[1], names, "{selected}");
    assert_eq!(selected[5].as_array().unwrap().len(), 2, "{selected}");
    live.grow(&parts[1]);
    browser.until("sums.total === 590");
    assert_eq!(browser.value(SELECTED), selected);
    assert_eq!(browser.value("selection.frame.ticks"), 30);
    let processes = "processes.pid.map((pid, process) => `${pid} ${processes.name[process]}`)";
    assert_eq!(browser.value(processes), json!(["7 worker", "3 first"]));
    let details = browser.value("element('details').textContent");
    assert!(details.as_str().unwrap().contains("30 ticks"), "{details}");

    // Paused it stays as it is, and it is no longer asked for.
    browser.value("element('live').click()");
    browser.until("live.timer === 0");
    browser.value(
        "change({ tab: 'tree', transform: [] });
         views.tree.openAll(views.tree.root);
         views.tree.go([...views.tree.elements.values()].find(row => row.frame.name === 'copy_page').frame);
         element('tree').scrollTop = 150;",
    );
    let paused = browser.value(SELECTED);
    assert_eq!(paused[4], 150);
    live.grow(&parts[2]);
    live.grow(&[]);
    assert_eq!(browser.value("sums.total"), 590);
    browser.value("element('live').click()");
    browser.until("sums.total === 595 && !element('ended').hidden");
    let kept = browser.value(SELECTED);
    assert_eq!([&kept[1], &kept[4]], [&paused[1], &paused[4]], "{kept}");
    let said = browser.value("element('ended').textContent");
    assert_eq!(said, "The guest has ended: this is all of it.");
    assert_eq!(browser.value("element('live').disabled"), true);
    // Its account is that of a whole recording.
    let about = browser.value("element('about').textContent");
    assert!(about.as_str().unwrap().contains("595 ticks"), "{about}");
    assert!(!about.as_str().unwrap().contains("cut off"), "{about}");
    assert_eq!(
        browser.deeds_of(&live.address),
        Vec::<serde_json::Value>::new()
    );
}

#[test]
fn hostile_names_of_newer_data_stay_text() {
    let bytes = recording(true);
    // Its samples are in the first part.
    let (first, rest) = bytes.split_at(bytes.len() - 20);
    let live = Live::start(first);
    let mut browser = live.browser();
    browser.value(USE);
    live.grow(rest);
    live.grow(&[]);
    browser.until("!element('ended').hidden");
    let shown = browser.value("document.body.textContent");
    assert!(shown.as_str().unwrap().contains("<img"), "{shown}");
    browser.value(USE);
    assert_eq!(
        browser.deeds_of(&live.address),
        Vec::<serde_json::Value>::new()
    );
}

/// Connections of strangers don't keep newer data away. Without the server the page says so, and stays.
#[test]
fn strangers_and_the_end_of_the_server_leave_the_page_as_it_is() {
    let parts = parts();
    let mut live = Live::start(&parts[0]);
    let mut browser = live.browser();
    let host = live.address.strip_prefix("http://").unwrap();
    let (host, path) = host.split_at(host.find('/').unwrap());
    let exchange = |request: String| {
        let mut stream = TcpStream::connect(host).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        let _ = stream.read_to_string(&mut answer);
        answer.get(9..12).unwrap_or_default().to_owned()
    };
    let strangers = (0..200).map(|_| TcpStream::connect(host).unwrap());
    let mut strangers: Vec<TcpStream> = strangers.collect();
    for stranger in &mut strangers {
        // Some of these are closed already.
        let _ = stranger.write_all(b"GET /");
    }
    live.grow(&parts[1]);
    browser.until("sums.total === 590");
    for (status, request) in [
        ("404", format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n")),
        (
            "403",
            format!("GET {path} HTTP/1.1\r\nHost: example.org\r\n\r\n"),
        ),
        (
            "405",
            format!("POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Length: 0\r\n\r\n"),
        ),
        (
            "400",
            format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nHost: {host}\r\n\r\n"),
        ),
        (
            "200",
            format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n"),
        ),
    ] {
        assert_eq!(exchange(request.clone()), status, "{request}");
    }
    kill_process(Pid::from_child(&live.command), Signal::INT).unwrap();
    assert!(live.command.wait().unwrap().success());
    assert_eq!(live.folder.path().read_dir().unwrap().count(), 2);
    browser.until("!element('ended').hidden");
    let said = browser.value("element('ended').textContent");
    assert!(
        said.as_str().unwrap().starts_with("Nothing newer"),
        "{said}"
    );
    assert_eq!(browser.value("sums.total"), 590);
}

#[test]
fn a_guest_that_ends_without_a_tick_has_no_page() {
    let folder = tempfile::tempdir().unwrap();
    let (mut command, parts) = view(&folder);
    let mut written = Written::with_symbols(SYMBOLS);
    written.gap(0, 0, 0);
    parts.send(written.finish().0).unwrap();
    parts.send(Vec::new()).unwrap();
    let ran = ProgramResult::from(command.output().unwrap());
    assert_eq!(ran.status, FAILURE, "{ran:?}");
    let why = "No tick came. The guest has ended";
    assert!(ran.stderr.contains(why), "{ran:?}");
}
