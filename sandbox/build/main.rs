//! Compiles the tables of system calls into filters (programs of classic BPF) when kvmprof is built, so that a start only installs
//! them. It writes them to `filters.rs` in `OUT_DIR`, which `src/filters/apply.rs` includes.

mod allowed;
mod compile;
mod tables;
#[path = "../src/thread.rs"]
mod thread;

use std::error::Error;
use std::fmt::Write;
use std::path::Path;
use std::{env, fs};

use thread::Thread;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=build");
    println!("cargo::rerun-if-changed=src/thread.rs");
    let mut source = format!(
        "/// The filter of each kind of thread, in the order of [`Thread::ALL`].\n\
         static PROGRAMS: [&[libc::sock_filter]; {}] = [\n",
        Thread::ALL.len()
    );
    for thread in Thread::ALL {
        writeln!(source, "    // {thread:?}\n    &[")?;
        for it in compile::compile(thread.allowed()) {
            let (code, jt, jf, k) = (it.code, it.jt, it.jf, it.k);
            writeln!(
                source,
                "        libc::sock_filter {{ code: {code}, jt: {jt}, jf: {jf}, k: {k} }},"
            )?;
        }
        source.push_str("    ],\n");
    }
    source.push_str("];\n");
    let folder = env::var_os("OUT_DIR").ok_or("cargo gives no OUT_DIR")?;
    fs::write(Path::new(&folder).join("filters.rs"), source)?;
    Ok(())
}
