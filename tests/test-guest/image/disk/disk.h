/* A driver of virtio-blk (virtio 1.2, section 5.2), by polling, and what the workloads with disks tell the host. */
#ifndef DISK_H
#define DISK_H

#include <stdint.h>

#include "../virtio/mmio.h"
#include "../virtio/queue.h"

#define DEVICE_ID_BLOCK 2
#define SECTOR_SIZE 512
/* Queues that the driver looks at. */
#define DISK_QUEUES 4
#define DISK_QUEUES_OFFSET (REGISTER_CONFIGURATION + 34)

/* Features */
#define FEATURE_FLUSH (1u << 9)
#define FEATURE_MQ (1u << 12)
#define FEATURE_DISCARD (1u << 13)
#define FEATURE_WRITE_ZEROES (1u << 14)
#define FEATURE_INDIRECT (1u << 28)
#define FEATURE_EVENT_INDEX (1u << 29)
#define EVERY_FEATURE (FEATURE_FLUSH | FEATURE_MQ | FEATURE_DISCARD | FEATURE_WRITE_ZEROES | FEATURE_INDIRECT | FEATURE_EVENT_INDEX)

/* Types of requests */
enum {
    DISK_READ = 0,
    DISK_WRITE = 1,
    DISK_FLUSH = 4,
    DISK_GET_ID = 8,
    DISK_DISCARD = 11,
    DISK_ZERO = 13,
};

/* How a request ends: the status byte, or one of these. */
enum {
    STATUS_OK = 0,
    STATUS_IO_ERROR = 1,
    STATUS_UNSUPPORTED = 2,
    DISK_TIMED_OUT = -1,
    DISK_NEEDS_RESET = -2,
    DISK_NO_DEVICE = -3,
    DISK_WRONG_DATA = -4,
};

struct request_header {
    uint32_t type;
    uint32_t reserved;
    uint64_t sector;
};

struct segment {
    uint64_t sector;
    uint32_t sectors;
    uint32_t flags;
};

struct disk {
    uint64_t base;
    uint64_t sectors;
    uint32_t queues;
    int needs_reset;   /* since a queue's failure, until the reset; the other queues go on */
    uint32_t features; /* the low half of those that were accepted */
    struct virtqueue queue[DISK_QUEUES];
    struct request_header header;
    volatile uint8_t status;
    struct descriptor indirect[QUEUE_SIZE] __attribute__((aligned(16)));
};

/* Whether the driver writes or reads the request's data. */
enum data { NO_DATA, DATA_TO_DEVICE, DATA_FROM_DEVICE };

struct request {
    uint32_t type;
    enum data data;
    uint64_t sector;
    const volatile void *bytes;
    uint32_t length;
    uint32_t pieces; /* that the data is described in, 1 or 2 */
};

int disk_find(struct disk *disk);
int disk_start(struct disk *disk, uint32_t features);
void disk_notify(struct disk *disk, uint32_t queue);
int disk_wait(struct disk *disk, uint32_t queue);
int disk_perform(struct disk *disk, uint32_t queue, const struct request *request);

/* attacks.c */
void try_attacks(struct disk *disk);

/* What the workload "disk" tells; src/disks.rs reads it. */
#define DISK_STEPS_MAX 256

struct disk_step {
    uint64_t name; /* its address */
    int32_t expected;
    int32_t outcome;
};

struct disk_results {
    uint32_t steps;
    uint32_t finished;
    uint64_t sectors;
    uint32_t queues;
    uint32_t features;
    uint8_t serial[24];
    struct disk_step step[DISK_STEPS_MAX];
};

extern struct disk_results kvmprof_disk_results;

void disk_step(const char *name, int expected, int outcome);

#endif
