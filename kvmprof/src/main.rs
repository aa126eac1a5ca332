//! The program `kvmprof`.

fn main() -> std::process::ExitCode {
    kvmprof::commands::main()
}
