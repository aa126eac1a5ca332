//! Compiles the tables of system calls into filters (programs of classic BPF) when kvmprof is built, so that a start only installs
//! them. It writes them to `filters.rs` in `OUT_DIR`, which `src/filters/apply.rs` includes.

mod calls;
mod compile;
mod leaving;
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
        let program = compile::allow_only(thread.allowed());
        writeln!(source, "    // {thread:?}\n    &{},", literal(&program)?)?;
    }
    source.push_str("];\n");
    let leaving = compile::refuse_only(leaving::REFUSED.iter());
    writeln!(
        source,
        "/// The filter of a program that runs no guest.\n\
         pub(super) static LEAVING: &[libc::sock_filter] = &{};",
        literal(&leaving)?
    )?;
    let folder = env::var_os("OUT_DIR").ok_or("cargo gives no OUT_DIR")?;
    fs::write(Path::new(&folder).join("filters.rs"), source)?;
    Ok(())
}

fn literal(program: &[compile::Instruction]) -> Result<String, std::fmt::Error> {
    let mut literal = "[\n".to_string();
    for it in program {
        let (code, jt, jf, k) = (it.code, it.jt, it.jf, it.k);
        writeln!(
            literal,
            "        libc::sock_filter {{ code: {code}, jt: {jt}, jf: {jf}, k: {k} }},"
        )?;
    }
    literal.push_str("    ]");
    Ok(literal)
}
