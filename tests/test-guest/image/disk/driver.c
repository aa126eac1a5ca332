/* The device: start, requests. */
#include "disk.h"
#include "kernel.h"
#include "memory.h"
#include "../options.h"

/* Far beyond what any answer takes, on a loaded machine too. */
#define TIMEOUT_MS 20000
/* The device's status is worth an exit once in so many looks. */
#define LOOKS_PER_STATUS 2048

/* The first disk among the devices of the command line. */
int disk_find(struct disk *disk)
{
    for (uint32_t device = 0; device < options.device_count; device++) {
        uint64_t base = options.devices[device];
        if (register_read(base, REGISTER_MAGIC) == MAGIC_VALUE && register_read(base, REGISTER_DEVICE_ID) == DEVICE_ID_BLOCK) {
            disk->base = base;
            return 0;
        }
    }
    return DISK_NO_DEVICE;
}

static void set_up_queue(struct disk *disk, uint32_t number)
{
    const struct virtqueue *queue = &disk->queue[number];
    uint64_t base = disk->base;

    register_write(base, REGISTER_QUEUE_SELECT, number);
    register_write(base, REGISTER_QUEUE_SIZE, QUEUE_SIZE);
    register_write_address(base, REGISTER_QUEUE_TABLE, (uint64_t)queue->table);
    register_write_address(base, REGISTER_QUEUE_AVAILABLE, (uint64_t)&queue->available);
    register_write_address(base, REGISTER_QUEUE_USED, (uint64_t)&queue->used);
    register_write(base, REGISTER_QUEUE_READY, 1);
}

/* From whatever state the device is in, with these features as far as there are. */
int disk_start(struct disk *disk, uint32_t features)
{
    uint64_t base = disk->base;
    uint32_t status = STATUS_ACKNOWLEDGE | STATUS_DRIVER;

    register_write(base, REGISTER_STATUS, STATUS_RESET);
    disk->needs_reset = 0;
    for (uint32_t queue = 0; queue < DISK_QUEUES; queue++)
        queue_clear(&disk->queue[queue]);
    register_write(base, REGISTER_STATUS, status);
    register_write(base, REGISTER_DEVICE_FEATURES_SELECT, 0);
    disk->features = register_read(base, REGISTER_DEVICE_FEATURES) & features;
    register_write(base, REGISTER_DRIVER_FEATURES_SELECT, 0);
    register_write(base, REGISTER_DRIVER_FEATURES, disk->features);
    register_write(base, REGISTER_DRIVER_FEATURES_SELECT, 1);
    register_write(base, REGISTER_DRIVER_FEATURES, 1u << (FEATURE_VERSION_1 - 32));
    status |= STATUS_FEATURES_OK;
    register_write(base, REGISTER_STATUS, status);
    if (register_read(base, REGISTER_STATUS) != status)
        return DISK_NO_DEVICE;
    disk->sectors = register_read(base, REGISTER_CONFIGURATION);
    disk->sectors |= (uint64_t)register_read(base, REGISTER_CONFIGURATION + 4) << 32;
    /* The upper half is the number of queues. */
    disk->queues = register_read(base, DISK_QUEUES_OFFSET - 2) >> 16;
    if (disk->queues > DISK_QUEUES)
        disk->queues = DISK_QUEUES;
    for (uint32_t queue = 0; queue < disk->queues; queue++)
        set_up_queue(disk, queue);
    register_write(base, REGISTER_STATUS, status | STATUS_DRIVER_OK);
    return 0;
}

void disk_notify(struct disk *disk, uint32_t queue)
{
    register_write(disk->base, REGISTER_QUEUE_NOTIFY, queue);
}

/* Waits for the one request of this queue; its status. */
int disk_wait(struct disk *disk, uint32_t queue)
{
    uint64_t since = rdtsc();
    uint32_t head, length;

    for (uint32_t looks = 1; !queue_take(&disk->queue[queue], &head, &length); looks++) {
        __asm__ volatile("pause");
        if (looks % LOOKS_PER_STATUS != 0)
            continue;
        if (!disk->needs_reset && register_read(disk->base, REGISTER_STATUS) & STATUS_NEEDS_RESET) {
            disk->needs_reset = 1;
            return DISK_NEEDS_RESET;
        }
        if (rdtsc() - since > kvmprof_truth.tsc_khz * TIMEOUT_MS)
            return DISK_TIMED_OUT;
    }
    return disk->status;
}

/* Describes the request in this table, from its first entry. */
static void describe(struct disk *disk, struct descriptor *table, const struct request *request)
{
    uint32_t index = 0;
    uint32_t flags = request->data == DATA_FROM_DEVICE ? DESCRIPTOR_WRITE : 0;
    uint64_t address = (uint64_t)request->bytes;
    uint32_t first = request->pieces == 2 ? request->length / 2 + 1 : request->length;

    table[index] = (struct descriptor){ (uint64_t)&disk->header, sizeof(disk->header), DESCRIPTOR_NEXT, (uint16_t)(index + 1) };
    index++;
    if (request->data != NO_DATA) {
        table[index] = (struct descriptor){ address, first, (uint16_t)(flags | DESCRIPTOR_NEXT), (uint16_t)(index + 1) };
        index++;
        if (request->pieces == 2) {
            table[index] = (struct descriptor){ address + first, request->length - first, (uint16_t)(flags | DESCRIPTOR_NEXT), (uint16_t)(index + 1) };
            index++;
        }
    }
    table[index] = (struct descriptor){ (uint64_t)&disk->status, 1, DESCRIPTOR_WRITE, 0 };
}

/* One request, through indirect descriptors where the device has them; its status. */
int disk_perform(struct disk *disk, uint32_t number, const struct request *request)
{
    struct virtqueue *queue = &disk->queue[number];

    disk->header = (struct request_header){ request->type, 0, request->sector };
    disk->status = 0xff;
    if (disk->features & FEATURE_INDIRECT) {
        describe(disk, disk->indirect, request);
        queue_describe(queue, 0, (uint64_t)disk->indirect, sizeof(disk->indirect), DESCRIPTOR_INDIRECT);
    } else {
        describe(disk, queue->table, request);
    }
    queue_offer(queue, 0);
    disk_notify(disk, number);
    return disk_wait(disk, number);
}
