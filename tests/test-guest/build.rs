//! Builds the guest's image from the demo guest's kernel.

fn main() -> std::io::Result<()> {
    let folders = [
        "image",
        "image/attacks",
        "image/disk",
        "image/virtio",
        "image/workloads",
    ];
    kvmprof_guest_builder::build("test.elf", "../../guest/demo/image", &folders)
}
