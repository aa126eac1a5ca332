/*
 * The workload "folder": a driver of virtio-fs (virtio 1.2, section 5.11) that
 * asks for nothing. It starts the device, and again whenever that needs a
 * reset, which it does when nobody serves the folder any more. It prints how
 * often it has.
 */
#include "../text.h"
#include "../virtio/network.h"
#include "kernel.h"
#include "workloads.h"

#define DEVICE_ID_FILE_SYSTEM 26
/* One for urgent requests, one for others. */
#define FOLDER_QUEUES 2
/* Between two looks at the status, which cost an exit each. */
#define PAUSES 10000

static struct simple_device folder;

void folder_starts(void)
{
    uint64_t starts = 0;

    if (this_vcpu()->index != 0)
        return;
    folder.base = find_device(DEVICE_ID_FILE_SYSTEM);
    folder.queue_count = FOLDER_QUEUES;
    while (simple_start(&folder, 0) == 0) {
        print_number("started ", ++starts);
        while (!(register_read(folder.base, REGISTER_STATUS) & STATUS_NEEDS_RESET)) {
            for (uint32_t i = 0; i < PAUSES; i++)
                __asm__ volatile("pause");
        }
    }
    print("the folder failed\r\n");
}
