/*
 * The workload "disk-load": reads blocks of the first disk without an end, so
 * many at a time as depth= says, and counts them: rounds, and the
 * notifications that they took, as writes to the device's memory. It looks at
 * the queue instead of taking interrupts.
 */
#include "disk.h"
#include "kernel.h"
#include "../workloads/workloads.h"

#define BLOCK 4096
#define BLOCK_SECTORS (BLOCK / SECTOR_SIZE)

/* A request, and what it reads. */
struct slot {
    struct descriptor table[3] __attribute__((aligned(16)));
    struct request_header header;
    volatile uint8_t status;
    uint8_t data[BLOCK];
};

static struct disk disk;
static struct slot slots[QUEUE_SIZE];

static void offer(uint32_t head)
{
    struct slot *slot = &slots[head];
    uint64_t blocks = disk.sectors / BLOCK_SECTORS;

    slot->header = (struct request_header){ DISK_READ, 0, (random_number() >> 20) % blocks * BLOCK_SECTORS };
    slot->status = 0xff;
    slot->table[0] = (struct descriptor){ (uint64_t)&slot->header, sizeof(slot->header), DESCRIPTOR_NEXT, 1 };
    slot->table[1] = (struct descriptor){ (uint64_t)slot->data, BLOCK, DESCRIPTOR_NEXT | DESCRIPTOR_WRITE, 2 };
    slot->table[2] = (struct descriptor){ (uint64_t)&slot->status, 1, DESCRIPTOR_WRITE, 0 };
    queue_describe(&disk.queue[0], head, (uint64_t)slot->table, sizeof(slot->table), DESCRIPTOR_INDIRECT);
    queue_offer(&disk.queue[0], (uint16_t)head);
}

/* Notifies the device if it wants to know of what was offered since the index was `before` (virtio 1.2, section 2.7.10). */
static void notify(uint16_t before)
{
    struct virtqueue *queue = &disk.queue[0];
    uint16_t now = queue->available.index;

    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    uint16_t event = __atomic_load_n(&queue->used.available_event, __ATOMIC_RELAXED);
    if ((uint16_t)(now - event - 1) < (uint16_t)(now - before)) {
        disk_notify(&disk, 0);
        this_counter()->exits.mmio_writes++;
    }
}

void disk_load(void)
{
    struct counter *counter = this_counter();
    uint32_t depth = options.depth < QUEUE_SIZE ? (uint32_t)options.depth : QUEUE_SIZE;

    if (this_vcpu()->index != 0)
        return;
    if (disk_find(&disk) != 0 || disk_start(&disk, EVERY_FEATURE) != 0 || disk.sectors < BLOCK_SECTORS) {
        print("no disk\r\n");
        return;
    }
    /* No interrupt for any request. */
    disk.queue[0].available.used_event = 0xffff;
    for (uint32_t head = 0; head < depth; head++)
        offer(head);
    notify(0);
    for (;;) {
        uint16_t before = disk.queue[0].available.index;
        uint32_t head, length;

        while (queue_take(&disk.queue[0], &head, &length)) {
            if (slots[head].status != STATUS_OK)
                counter->errors++;
            counter->rounds++;
            offer(head);
        }
        if (disk.queue[0].available.index != before)
            notify(before);
        disk.queue[0].available.used_event = (uint16_t)(disk.queue[0].taken + 0x4000);
        __asm__ volatile("pause");
    }
}
