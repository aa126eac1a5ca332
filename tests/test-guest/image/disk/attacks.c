/* Requests without sense, which are answered, and chains without, which cost the queue until a reset. */
#include "disk.h"
#include "kernel.h"
#include "memory.h"
#include "../options.h"

#define PIECES 4
#define PLENTY 0x7fffffff

static uint8_t bytes[2 * SECTOR_SIZE];

static const struct segment sane = { 8, 8, 0 };
static const struct segment beyond = { UINT64_MAX, 8, 0 };
static const struct segment too_long = { 0, UINT32_MAX, 0 };
static const struct segment none = { 0, 0, 0 };
static const struct segment unmapping = { 8, 8, 1 };
static const struct segment flagged = { 8, 8, 0xfffffffe };
static const struct segment many[17];

/* A request without sense. */
struct senseless {
    const char *name;
    struct request request;
    int expected;
};

static const struct senseless senseless[] = {
    { "read at sector 2^63", { DISK_READ, DATA_FROM_DEVICE, 1ull << 63, bytes, SECTOR_SIZE, 1 }, STATUS_IO_ERROR },
    { "read at sector 2^64 - 1", { DISK_READ, DATA_FROM_DEVICE, UINT64_MAX, bytes, SECTOR_SIZE, 1 }, STATUS_IO_ERROR },
    { "read whose bytes wrap around", { DISK_READ, DATA_FROM_DEVICE, (1ull << 55) + 8, bytes, SECTOR_SIZE, 1 }, STATUS_IO_ERROR },
    { "write at sector 2^63", { DISK_WRITE, DATA_TO_DEVICE, 1ull << 63, bytes, SECTOR_SIZE, 1 }, STATUS_IO_ERROR },
    { "read of a part of a sector", { DISK_READ, DATA_FROM_DEVICE, 0, bytes, 100, 1 }, STATUS_IO_ERROR },
    { "write of a part of a sector", { DISK_WRITE, DATA_TO_DEVICE, 0, bytes, 513, 2 }, STATUS_IO_ERROR },
    { "read of nothing", { DISK_READ, NO_DATA, 0, bytes, 0, 1 }, STATUS_IO_ERROR },
    { "write of nothing", { DISK_WRITE, NO_DATA, 0, bytes, 0, 1 }, STATUS_IO_ERROR },
    { "read into no data for the device", { DISK_READ, DATA_TO_DEVICE, 0, bytes, SECTOR_SIZE, 1 }, STATUS_IO_ERROR },
    { "write from room for the device", { DISK_WRITE, DATA_FROM_DEVICE, 0, bytes, SECTOR_SIZE, 1 }, STATUS_IO_ERROR },
    { "unknown type", { 99, NO_DATA, 0, bytes, 0, 1 }, STATUS_UNSUPPORTED },
    { "type of all ones", { UINT32_MAX, DATA_FROM_DEVICE, 0, bytes, SECTOR_SIZE, 1 }, STATUS_UNSUPPORTED },
    { "serial number into too little room", { DISK_GET_ID, DATA_FROM_DEVICE, 0, bytes, 10, 1 }, STATUS_IO_ERROR },
    { "discard of nothing", { DISK_DISCARD, NO_DATA, 0, bytes, 0, 1 }, STATUS_IO_ERROR },
    { "discard of a part of a segment", { DISK_DISCARD, DATA_TO_DEVICE, 0, &sane, 15, 1 }, STATUS_IO_ERROR },
    { "discard of too many segments", { DISK_DISCARD, DATA_TO_DEVICE, 0, many, sizeof(many), 1 }, STATUS_IO_ERROR },
    { "discard beyond the end", { DISK_DISCARD, DATA_TO_DEVICE, 0, &beyond, 16, 1 }, STATUS_IO_ERROR },
    { "discard of too much", { DISK_DISCARD, DATA_TO_DEVICE, 0, &too_long, 16, 1 }, STATUS_IO_ERROR },
    { "discard of no sectors", { DISK_DISCARD, DATA_TO_DEVICE, 0, &none, 16, 1 }, STATUS_IO_ERROR },
    { "discard with unmap", { DISK_DISCARD, DATA_TO_DEVICE, 0, &unmapping, 16, 1 }, STATUS_UNSUPPORTED },
    { "zero with unknown flags", { DISK_ZERO, DATA_TO_DEVICE, 0, &flagged, 16, 1 }, STATUS_UNSUPPORTED },
    { "zero beyond the end", { DISK_ZERO, DATA_TO_DEVICE, 0, &beyond, 16, 1 }, STATUS_IO_ERROR },
    { "zero of too much", { DISK_ZERO, DATA_TO_DEVICE, 0, &too_long, 16, 1 }, STATUS_IO_ERROR },
};

/* A chain's descriptors; addresses that aren't known before are put in by name. */
enum where { HEADER = 1, DATA, STATUS, INDIRECT_TABLE, OUTSIDE, ON_REGISTERS, LAST_BYTE };

struct piece {
    enum where where;
    uint32_t length;
    uint16_t flags;
    uint16_t next;
};

struct chain {
    const char *name;
    struct piece table[PIECES];
    struct piece indirect[PIECES];
    uint16_t head;
};

#define NEXT DESCRIPTOR_NEXT
#define WRITE DESCRIPTOR_WRITE
#define INDIRECT DESCRIPTOR_INDIRECT

static const struct chain chains[] = {
    { "chain that is a loop", { { HEADER, 16, NEXT, 1 }, { DATA, 512, NEXT, 0 } }, { { 0 } }, 0 },
    { "chain to beyond the table", { { HEADER, 16, NEXT, 8 } }, { { 0 } }, 0 },
    { "head beyond the table", { { HEADER, 16, NEXT, 1 } }, { { 0 } }, 0xffff },
    { "header alone", { { HEADER, 16, 0, 0 } }, { { 0 } }, 0 },
    { "status alone", { { STATUS, 1, WRITE, 0 } }, { { 0 } }, 0 },
    { "half a header", { { HEADER, 8, NEXT, 1 }, { STATUS, 1, WRITE, 0 } }, { { 0 } }, 0 },
    { "empty pieces", { { HEADER, 0, NEXT, 1 }, { STATUS, 0, WRITE, 0 } }, { { 0 } }, 0 },
    { "status before the header", { { STATUS, 1, WRITE | NEXT, 1 }, { HEADER, 16, 0, 0 } }, { { 0 } }, 0 },
    { "data outside memory", { { HEADER, 16, NEXT, 1 }, { OUTSIDE, 512, WRITE | NEXT, 2 }, { STATUS, 1, WRITE, 0 } }, { { 0 } }, 0 },
    { "status on registers", { { HEADER, 16, NEXT, 1 }, { ON_REGISTERS, 1, WRITE, 0 } }, { { 0 } }, 0 },
    { "data around 2^64", { { HEADER, 16, NEXT, 1 }, { LAST_BYTE, 512, WRITE | NEXT, 2 }, { STATUS, 1, WRITE, 0 } }, { { 0 } }, 0 },
    { "more data than a chain may have", { { HEADER, 16, NEXT, 1 }, { DATA, PLENTY, WRITE | NEXT, 2 }, { STATUS, 1, WRITE, 0 } }, { { 0 } }, 0 },
    { "indirect table of no length", { { INDIRECT_TABLE, 0, INDIRECT, 0 } }, { { 0 } }, 0 },
    { "indirect table of a part of a descriptor", { { INDIRECT_TABLE, 24, INDIRECT, 0 } }, { { HEADER, 16, 0, 0 } }, 0 },
    { "indirect table of 2^31 bytes", { { INDIRECT_TABLE, 0x80000000, INDIRECT, 0 } }, { { HEADER, 16, 0, 0 } }, 0 },
    { "indirect table outside memory", { { OUTSIDE, 64, INDIRECT, 0 } }, { { 0 } }, 0 },
    { "indirect table around 2^64", { { LAST_BYTE, 64, INDIRECT, 0 } }, { { 0 } }, 0 },
    { "indirect table with a successor", { { INDIRECT_TABLE, 64, INDIRECT | NEXT, 1 }, { STATUS, 1, WRITE, 0 } }, { { HEADER, 16, 0, 0 } }, 0 },
    { "indirect table in an indirect table", { { INDIRECT_TABLE, 64, INDIRECT, 0 } }, { { INDIRECT_TABLE, 64, INDIRECT, 0 } }, 0 },
    { "indirect table that is a loop", { { INDIRECT_TABLE, 64, INDIRECT, 0 } }, { { HEADER, 16, NEXT, 1 }, { DATA, 512, WRITE | NEXT, 1 } }, 0 },
    { "indirect chain to beyond its table", { { INDIRECT_TABLE, 32, INDIRECT, 0 } }, { { HEADER, 16, NEXT, 2 }, { STATUS, 1, WRITE, 0 }, { STATUS, 1, WRITE, 0 } }, 0 },
};

static uint64_t address_of(struct disk *disk, enum where where)
{
    switch (where) {
    case HEADER:
        return (uint64_t)&disk->header;
    case DATA:
        return (uint64_t)bytes;
    case STATUS:
        return (uint64_t)&disk->status;
    case INDIRECT_TABLE:
        return (uint64_t)disk->indirect;
    case OUTSIDE:
        return 1ull << 40;
    case ON_REGISTERS:
        return disk->base;
    default:
        return UINT64_MAX;
    }
}

static void describe(struct disk *disk, struct descriptor *table, const struct piece *pieces)
{
    for (uint32_t i = 0; i < PIECES; i++)
        table[i] = (struct descriptor){ address_of(disk, pieces[i].where), pieces[i].length, pieces[i].flags, pieces[i].next };
}

static int try_chain(struct disk *disk, const struct chain *chain)
{
    disk->header = (struct request_header){ DISK_READ, 0, 0 };
    disk->status = 0xff;
    describe(disk, disk->queue[0].table, chain->table);
    describe(disk, disk->indirect, chain->indirect);
    queue_offer(&disk->queue[0], chain->head);
    disk_notify(disk, 0);
    return disk_wait(disk, 0);
}

static int read_on(struct disk *disk, uint32_t queue)
{
    const struct request request = { DISK_READ, DATA_FROM_DEVICE, 0, bytes, sizeof(bytes), 1 };
    return disk_perform(disk, queue, &request);
}

/* The other queues go on, and after a reset this one does. */
static void recover(struct disk *disk)
{
    if (disk->queues > 1)
        disk_step("another queue meanwhile", STATUS_OK, read_on(disk, 1));
    int outcome = disk_start(disk, EVERY_FEATURE);
    disk_step("the same after a reset", STATUS_OK, outcome == 0 ? read_on(disk, 0) : outcome);
}

void try_attacks(struct disk *disk)
{
    for (uint32_t i = 0; i < sizeof(senseless) / sizeof(senseless[0]); i++)
        disk_step(senseless[i].name, senseless[i].expected, disk_perform(disk, 0, &senseless[i].request));
    for (uint32_t i = 0; i < sizeof(chains) / sizeof(chains[0]); i++) {
        disk_step(chains[i].name, DISK_NEEDS_RESET, try_chain(disk, &chains[i]));
        recover(disk);
    }
    disk->queue[0].available.index = 0x4000;
    disk_notify(disk, 0);
    disk_step("absurd index of the available ring", DISK_NEEDS_RESET, disk_wait(disk, 0));
    recover(disk);
}
