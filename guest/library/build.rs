//! Builds the library with its script, as packages do.

use std::io;
use std::process::Command;

fn main() -> io::Result<()> {
    for part in ["build", "source", "../abi/include"] {
        println!("cargo:rerun-if-changed={part}");
    }
    for variable in ["CC", "AR"] {
        println!("cargo:rerun-if-env-changed={variable}");
    }
    let folder =
        std::env::var_os("OUT_DIR").ok_or_else(|| io::Error::other("cargo did not set OUT_DIR"))?;
    let status = Command::new("./build").arg(folder).status()?;
    if status.success() {
        Ok(())
    } else {
        Err(io::Error::other(format!("guest/library/build: {status}")))
    }
}
