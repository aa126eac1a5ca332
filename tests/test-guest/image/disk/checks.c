/*
 * The workload "disk": every kind of request, on each queue and with different
 * features, then requests and chains that no driver should send.
 */
#include "disk.h"
#include "kernel.h"
#include "memory.h"
#include "../workloads/workloads.h"

/* Sectors that a check writes. */
#define LENGTH (16 * SECTOR_SIZE)

struct disk_results kvmprof_disk_results;

static struct disk disk;
static uint64_t written[LENGTH / 8];
static uint64_t read[LENGTH / 8];

void disk_step(const char *name, int expected, int outcome)
{
    uint32_t step = kvmprof_disk_results.steps;

    if (step == DISK_STEPS_MAX)
        return;
    kvmprof_disk_results.step[step] = (struct disk_step){ (uint64_t)name, expected, outcome };
    __atomic_store_n(&kvmprof_disk_results.steps, step + 1, __ATOMIC_RELEASE);
}

static int write(uint32_t queue, uint64_t sector, uint32_t pieces)
{
    const struct request request = { DISK_WRITE, DATA_TO_DEVICE, sector, written, LENGTH, pieces };
    return disk_perform(&disk, queue, &request);
}

/* Reads as much as is written at once, and compares. */
static int compare(uint32_t queue, uint64_t sector, const uint64_t *expected)
{
    const struct request request = { DISK_READ, DATA_FROM_DEVICE, sector, read, LENGTH, 2 };
    memset(read, 0xa5, sizeof(read));
    int outcome = disk_perform(&disk, queue, &request);
    for (uint32_t word = 0; outcome == STATUS_OK && word < LENGTH / 8; word++) {
        if (read[word] != (expected == NULL ? 0 : expected[word]))
            outcome = DISK_WRONG_DATA;
    }
    return outcome;
}

static int flush(uint32_t queue)
{
    const struct request request = { .type = DISK_FLUSH };
    return disk_perform(&disk, queue, &request);
}

static int on_segment(uint32_t queue, uint32_t type, uint64_t sector, uint32_t flags)
{
    const struct segment segment = { sector, LENGTH / SECTOR_SIZE, flags };
    const struct request request = { type, DATA_TO_DEVICE, 0, &segment, sizeof(segment), 1 };
    return disk_perform(&disk, queue, &request);
}

/* The same on each queue: it writes a place of its own. */
static void check_queue(uint32_t queue, uint32_t seed)
{
    uint64_t sector = 64 + 64 * (uint64_t)queue;

    for (uint32_t word = 0; word < LENGTH / 8; word++)
        written[word] = (uint64_t)seed << 32 | queue << 16 | word;
    disk_step("write", STATUS_OK, write(queue, sector, 2));
    disk_step("flush", STATUS_OK, flush(queue));
    disk_step("read", STATUS_OK, compare(queue, sector, written));
    if (disk.features & FEATURE_WRITE_ZEROES) {
        disk_step("zero", STATUS_OK, on_segment(queue, DISK_ZERO, sector, 0));
        disk_step("read zeroes", STATUS_OK, compare(queue, sector, NULL));
        disk_step("write again", STATUS_OK, write(queue, sector, 1));
        disk_step("zero and free", STATUS_OK, on_segment(queue, DISK_ZERO, sector, 1));
        disk_step("read freed zeroes", STATUS_OK, compare(queue, sector, NULL));
    }
    if (disk.features & FEATURE_DISCARD)
        disk_step("discard", STATUS_OK, on_segment(queue, DISK_DISCARD, sector, 0));
    disk_step("write for the host", STATUS_OK, write(queue, sector, 1));
}

static void check_serial(void)
{
    const struct request request = { DISK_GET_ID, DATA_FROM_DEVICE, 0, kvmprof_disk_results.serial, 20, 1 };
    disk_step("serial number", STATUS_OK, disk_perform(&disk, 0, &request));
}

static void check_features(uint32_t features)
{
    disk_step("start", 0, disk_start(&disk, features));
    kvmprof_disk_results.sectors = disk.sectors;
    kvmprof_disk_results.queues = disk.queues;
    kvmprof_disk_results.features |= disk.features;
    for (uint32_t queue = 0; queue < disk.queues; queue++)
        check_queue(queue, features);
}

void disk_checks(void)
{
    if (this_vcpu()->index != 0)
        return;
    int outcome = disk_find(&disk);
    disk_step("a disk", 0, outcome);
    if (outcome == 0) {
        check_features(0);
        check_features(FEATURE_FLUSH | FEATURE_EVENT_INDEX);
        check_features(EVERY_FEATURE);
        check_serial();
        try_attacks(&disk);
        check_features(EVERY_FEATURE);
    }
    __atomic_store_n(&kvmprof_disk_results.finished, 1, __ATOMIC_RELEASE);
}
