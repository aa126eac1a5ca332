//! Builds the guest's image: the kernel and its one workload.

fn main() -> std::io::Result<()> {
    kvmprof_guest_builder::build("demo.elf", "image", &["image/workload"])
}
