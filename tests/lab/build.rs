//! Builds the one program that the lab puts into every machine.

use std::path::PathBuf;
use std::{env, process};

fn main() {
    println!("cargo::rerun-if-changed=src/keeper.c");
    let Some(out) = env::var_os("OUT_DIR") else {
        return fail("cargo gave no OUT_DIR");
    };
    let program = PathBuf::from(out).join("keeper");
    let compiler = match cc::Build::new().warnings(true).try_get_compiler() {
        Ok(compiler) => compiler,
        Err(error) => return fail(&format!("no C compiler: {error}")),
    };
    let built = compiler
        .to_command()
        .args(["-static", "-s", "src/keeper.c", "-o"])
        .arg(program)
        .status();
    match built {
        Ok(status) if status.success() => {}
        Ok(status) => fail(&format!("the C compiler ended with {status}")),
        Err(error) => fail(&format!("the C compiler cannot be run: {error}")),
    }
}

fn fail(reason: &str) {
    eprintln!("Cannot build keeper.c: {reason}; apt-get install gcc libc6-dev");
    process::exit(1);
}
