//! What a browser asks `kvmprof view`: requests of HTTP, and what the Firefox Profiler asks a symbol server about a recording. The first
//! byte chooses.

use std::path::Path;

use kvmprof_cli::http;
use kvmprof_recording::file::{Recording, Unobserved};
use kvmprof_report::profile::{Profile, Selection};
use kvmprof_report::symbol_server::{Request, SymbolServer};
use kvmprof_report::symbolize::{Resolver, SourceTexts};

use super::recording::example;

/// Most bytes of a request's body.
const MAX_BODY: usize = 1 << 16;

thread_local! {
    /// The recording that is asked about.
    static EXAMPLE: (Profile, SymbolServer) = {
        let (_folder, path) = example::recording(1);
        let recording = Recording::from_bytes(Path::new("example"), std::fs::read(path).unwrap());
        let recording = recording.unwrap();
        let contents = recording.contents().unwrap();
        let resolver = Resolver::from_contents(&contents);
        let profile = Profile::read(&recording, Selection::default(), resolver, &Unobserved).unwrap();
        let server = SymbolServer::new(&profile, SourceTexts::default());
        (profile, server)
    };
}

/// Asks.
pub fn run(data: &[u8]) {
    let Some((choice, bytes)) = data.split_first() else {
        return;
    };
    let request = match choice % 4 {
        0 => Request::Symbolicate,
        1 => Request::Source,
        2 => Request::Assembly,
        _ => {
            let mut stream = bytes;
            if let Ok(Some(mut request)) = http::Request::read(&mut stream) {
                Request::of_path(&request.path);
                if let Ok(body) = request.body(&mut stream, MAX_BODY) {
                    assert!(body.len() <= MAX_BODY);
                }
            }
            return;
        }
    };
    EXAMPLE.with(|(profile, server)| {
        let answer = server.answer(profile, request, bytes);
        serde_json::from_slice::<serde_json::Value>(&answer).unwrap();
    });
}

/// A request of each kind about the recording's program.
pub fn seeds() -> Vec<(&'static str, Vec<u8>)> {
    let of = |choice: u8, text: &str| [&[choice][..], text.as_bytes()].concat();
    // As the recording's libraries have them.
    let id = "67452301AB89EFCD00000000000000000";
    let kernel = "EEFFC0000000000000000000000000000";
    vec![
        (
            "symbolicate",
            of(
                0,
                &format!(
                    r#"{{"jobs":[{{"memoryMap":[["server","{id}"],["[kernel]","{kernel}"]],"stacks":[[[0,4352],[1,1856],[-1,1]]]}}]}}"#
                ),
            ),
        ),
        (
            "one-job",
            of(
                0,
                &format!(r#"{{"memoryMap":[["server","{id}"]],"stacks":[[[0,4096]]]}}"#),
            ),
        ),
        (
            "source",
            of(
                1,
                &format!(
                    r#"{{"debugName":"server","debugId":"{id}","moduleOffset":"0x1100","file":"server.c"}}"#
                ),
            ),
        ),
        (
            "assembly",
            of(
                2,
                &format!(
                    r#"{{"name":"server","debugName":"server","debugId":"{id}","startAddress":"0x1100","size":"0x40","continueUntilFunctionEnd":true}}"#
                ),
            ),
        ),
        (
            "http",
            of(
                3,
                "POST /folder/symbolicate/v5 HTTP/1.1\r\nHost: 127.0.0.1:80\r\nContent-Length: 2\r\n\r\n{}",
            ),
        ),
        (
            "chunks",
            of(
                3,
                "POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
            ),
        ),
    ]
}
