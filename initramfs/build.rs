//! Builds the init program of guests that start from a shared folder.

fn main() -> std::io::Result<()> {
    kvmprof_guest_builder::build("init.elf", "init", &[])
}
