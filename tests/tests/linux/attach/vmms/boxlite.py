"""Runs the guest's programs in a box, each as a command of its own, and prints when they run, and what the last one prints."""

import asyncio

import boxlite


async def main():
    runtime = boxlite.Boxlite(boxlite.Options(home_dir="/run/boxlite"))
    # Its jail changes the root folder, which can't be done in an initial RAM disk.
    security = boxlite.SecurityOptions.development()
    options = boxlite.BoxOptions(
        rootfs_path="/run/image",
        cpus=1,
        memory_mib=512,
        advanced=boxlite.AdvancedBoxOptions(security=security),
    )
    box = await runtime.create(options, name="guest")
    await box.exec("/bin/dd", ["if=/dev/zero", "of=/dev/null", "bs=4k"])
    await box.exec("/bin/calls")
    await box.exec("/bin/plain")
    beats = await box.exec("/bin/sh", ["-c", "while :; do sleep 1; echo beat; done"])
    print("workload running", flush=True)
    async for line in beats.stdout():
        print(line, end="", flush=True)


asyncio.run(main())
