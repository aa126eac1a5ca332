/*
 * The workload "disk-writes": writes blocks without an end, each with its
 * number in it, to places that follow from the number, and now and then
 * flushes. What is flushed is printed: "flushed NUMBER". src/disks.rs knows the
 * places, too.
 */
#include "disk.h"
#include "kernel.h"
#include "memory.h"
#include "../text.h"
#include "../workloads/workloads.h"

#define BLOCK 4096
#define BLOCK_SECTORS (BLOCK / SECTOR_SIZE)
/* Writes between two flushes. */
#define WRITES 8

static struct disk disk;
static uint64_t block[BLOCK / 8];

/* The place of a write: a mixture of its number's bits. */
static uint64_t place_of(uint64_t number, uint64_t blocks)
{
    uint64_t mixed = number * 0x9e3779b97f4a7c15;
    return (mixed >> 32) % blocks;
}

void disk_writes(void)
{
    const struct request flush = { .type = DISK_FLUSH };

    if (this_vcpu()->index != 0)
        return;
    if (disk_find(&disk) != 0 || disk_start(&disk, EVERY_FEATURE) != 0)
        print("no disk\r\n");
    for (uint64_t number = 1;; number++) {
        uint64_t place = place_of(number, disk.sectors / BLOCK_SECTORS);
        const struct request write = { DISK_WRITE, DATA_TO_DEVICE, place * BLOCK_SECTORS, block, BLOCK, 1 };
        for (uint32_t word = 0; word < BLOCK / 8; word++)
            block[word] = number;
        if (disk_perform(&disk, number % disk.queues, &write) != STATUS_OK) {
            print("a write failed\r\n");
            return;
        }
        if (number % WRITES != 0)
            continue;
        if (disk_perform(&disk, 0, &flush) != STATUS_OK) {
            print("a flush failed\r\n");
            return;
        }
        print_number("flushed ", number);
    }
}
