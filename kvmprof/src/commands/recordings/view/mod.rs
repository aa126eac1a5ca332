//! `kvmprof view`.

mod live;
mod response;
mod server;

use std::path::PathBuf;
use std::sync::mpsc::channel;
use std::thread;

use anyhow::Context;
use clap::Args;
use kvmprof_cli::command_line::{Command, Console, ExitStatus, SocketArgs, usage};
use kvmprof_cli::interrupt::Interrupt;
use kvmprof_report::export::{Events, Source, write_on_demand};
use kvmprof_report::symbol_server::SymbolServer;
use tempfile::NamedTempFile;

use super::html::{SourceArguments, page_of};
use super::input::Input;
use super::{InputArguments, NO_OUTPUT};
use crate::commands::browser;
use crate::commands::record_limit::parse_limit;
use response::Document;
use server::Server;

/// The address of the Firefox Profiler, which runs in the browser and loads the profile that the rest of the address names.
const FIREFOX_PROFILER: &str = "https://profiler.firefox.com";

/// Show a recording, or a guest that runs, in the browser
///
/// Serves the page of kvmprof html at an address of this host's loopback interface, and opens it. Ctrl-C ends the command. With --live the page
/// shows what a guest does from now on, anew each second; its recording is a temporary file.
#[derive(Debug, Args)]
#[command(
    after_help = "The address has a random part: other users of this host can't guess it, and the browser gets it by a file that \
    only this user can read.\n\n\
    Exit status: 0; 1 when the recording cannot be read or has nothing that the options select, there is no such guest, or the port is \
    taken; 2 for wrong options.\n\n\
    Examples:\n  kvmprof view out.kvmprof\n  kvmprof view --live guest\n  kvmprof view out.kvmprof --firefox --no-open --port 3000"
)]
pub struct ViewArguments {
    /// The recordings, which are counted together; - is standard input
    #[arg(value_name = "FILE", default_value = "out.kvmprof")]
    files: Vec<PathBuf>,
    /// Show a guest that runs: its name, the pid of its VMM (see kvmprof list), or the path of a socket, with a slash in it. If not given, the
    /// only one that runs
    #[arg(long, value_name = "TARGET", num_args = 0..=1, conflicts_with_all = ["files", "firefox"])]
    live: Option<Option<String>>,
    #[command(flatten)]
    socket: SocketArgs,
    /// How long the recording of --live may become, such as 1G (1M at least) [default: 256M]: nothing newer is shown then
    #[arg(long, value_name = "SIZE", value_parser = parse_limit, requires = "live")]
    record_limit: Option<u64>,
    /// Show it in the Firefox Profiler (profiler.firefox.com), which loads it from this host and keeps it in the browser
    #[arg(long)]
    firefox: bool,
    #[command(flatten)]
    sources: SourceArguments,
    /// The TCP port, if not any that is free
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    port: u16,
    /// Only print the address, and open no browser
    #[arg(long)]
    no_open: bool,
    #[command(flatten)]
    input: InputArguments,
}

impl Command for ViewArguments {
    /// Reads the recording and serves it until Ctrl-C.
    fn execute(&self, console: &mut Console<'_>) -> anyhow::Result<ExitStatus> {
        if self.live.is_none() && self.socket.named().is_some() {
            return Err(usage("--socket names a guest that runs: give --live, too"));
        }
        let interrupt = Interrupt::on_signals().context("Cannot catch signals")?;
        if let Some(target) = &self.live {
            self.show_live(target.clone(), &interrupt, console)?;
            return Ok(ExitStatus::SUCCESS);
        }
        if !self.firefox {
            let page = page_of(&self.input, &self.sources, &self.files, console)?;
            let server = Server::bind(self.port, Document::page(page.into_bytes()), None)?;
            let address = server.address();
            let _opened = self.show(server, "page", &address, &interrupt, console)?;
            interrupt.wait(None);
            return Ok(ExitStatus::SUCCESS);
        }
        let [file] = self.files.as_slice() else {
            return Err(usage("--firefox shows one recording at a time"));
        };
        let texts = self.sources.texts(&self.input)?;
        let mut events = Events::new(None);
        let Input {
            recording,
            profile,
            copy: _copy,
        } = self.input.open_with(file, console, &mut events)?;
        let mut json = Vec::new();
        let source = Source::new(recording, profile, events)?;
        write_on_demand(&source, &mut json)?;
        let document = Document::profile(json, FIREFOX_PROFILER);
        let (sender, questions) = channel();
        let server = Server::bind(self.port, document, Some(sender.clone()))?;
        let address = format!(
            "{FIREFOX_PROFILER}/from-url/{}/?symbolServer={}",
            percent_encoded(&server.address()),
            percent_encoded(&server.symbols_address())
        );
        let profile = source.profile();
        let symbols = SymbolServer::new(profile, texts);
        let _opened = self.show(server, "profile", &address, &interrupt, console)?;
        // An interrupt is sent as the last question.
        let thread = thread::Builder::new().name("end".into());
        let ended = thread.spawn(move || {
            interrupt.wait(None);
            sender.send(None)
        });
        ended.context("Cannot start a thread")?;
        while let Ok(Some(question)) = questions.recv() {
            let answer = symbols.answer(profile, question.request, &question.body);
            // The client may be gone.
            let _ = question.answer.send(answer);
        }
        Ok(ExitStatus::SUCCESS)
    }
}

impl ViewArguments {
    /// Starts the server, and prints and opens the `address` of its document. The returned page has to exist while it
    /// is shown.
    fn show(
        &self,
        server: Server,
        name: &str,
        address: &str,
        interrupt: &Interrupt,
        console: &mut Console<'_>,
    ) -> anyhow::Result<Option<NamedTempFile>> {
        server.start(interrupt).context("Cannot start a thread")?;
        writeln!(console.text(), "{name}: {address}").context(NO_OUTPUT)?;
        console.text().flush().context(NO_OUTPUT)?;
        let mut page = None;
        if !self.no_open {
            match open(address) {
                Ok(opened) => page = Some(opened),
                Err(error) => console.warn(format_args!("{error:#}")),
            }
        }
        console.say("serving; Ctrl-C ends it");
        Ok(page)
    }
}

/// Opens a page that redirects to `address` in the browser.
fn open(address: &str) -> anyhow::Result<NamedTempFile> {
    let page = browser::page_to(address).context("Cannot make a file for the browser")?;
    browser::open(&page.path().display().to_string())?;
    Ok(page)
}

/// `text` as a part of an address (RFC 3986, section 2.1).
fn percent_encoded(text: &str) -> String {
    let mut encoded = String::new();
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            encoded.push_str(&format!("%{byte:02X}"));
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_within_a_url_is_encoded() {
        assert_eq!(
            percent_encoded("http://127.0.0.1:3000/a-b_c~d/ü"),
            "http%3A%2F%2F127.0.0.1%3A3000%2Fa-b_c~d%2F%C3%BC"
        );
    }
}
