/*
 * A hostile driver of the virtio-mmio devices at ADDRESS: hostile_rings ADDRESS.
 * It maps their registers by /dev/mem, while no driver of the kernel uses them,
 * and has its rings in a huge page, whose physical address it knows. It does
 * everything to the network, socket and file system devices that a driver must
 * not do, and tells of each attack on each of them: "attacked ID NAME".
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { DEVICES = 16, REGISTERS = 0x1000, SIZE = 16, QUEUES = 4, HUGE_PAGE = 2 << 20 };
/* Registers (virtio 1.2, 4.2.2). */
enum {
    MAGIC = 0x00, DEVICE_ID = 0x08, FEATURES = 0x10, FEATURES_SEL = 0x14, DRIVER = 0x20, DRIVER_SEL = 0x24,
    QUEUE_SEL = 0x30, QUEUE_MAX = 0x34, QUEUE_NUM = 0x38, QUEUE_READY = 0x44, NOTIFY = 0x50, STATUS = 0x70,
    DESCRIPTORS = 0x80, AVAILABLE = 0x90, USED = 0xa0
};
enum { NEXT = 1, WRITE = 2, INDIRECT = 4 };
enum { ALL_OF_DRIVER = 0xf };

struct descriptor { uint64_t address; uint32_t length; uint16_t flags, next; };
struct available { uint16_t flags, index, ring[SIZE]; };

static volatile uint8_t *registers;
static uint8_t *memory;
static uint64_t physical, base;
static int device, queues;
static uint64_t state = 1;

static uint64_t number(void)
{
    state ^= state << 13;
    state ^= state >> 7;
    return state ^= state << 17;
}

static uint32_t get(int offset)
{
    return *(volatile uint32_t *)(registers + device * REGISTERS + offset);
}

static void set(int offset, uint32_t value)
{
    *(volatile uint32_t *)(registers + device * REGISTERS + offset) = value;
}

static void set_address(int offset, uint64_t address)
{
    set(offset, (uint32_t)address);
    set(offset + 4, (uint32_t)(address >> 32));
}

/* Each queue has four pages: descriptors, available and used ring, and data. */
static int place(int queue, int page) { return (queue * 4 + page) * 4096; }
static struct descriptor *descriptors(int queue) { return (void *)(memory + place(queue, 0)); }
static volatile struct available *available(int queue) { return (void *)(memory + place(queue, 1)); }

static void notify(int times)
{
    while (times-- > 0)
        for (int queue = 0; queue < queues; queue++)
            set(NOTIFY, (uint32_t)queue);
}

static void reset(void)
{
    set(STATUS, 0);
    while (get(STATUS) != 0)
        usleep(100);
}

static void place_queue(int queue, uint32_t size, uint64_t first, uint64_t second, uint64_t third)
{
    set(QUEUE_SEL, (uint32_t)queue);
    set(QUEUE_NUM, size);
    set_address(DESCRIPTORS, first);
    set_address(AVAILABLE, second);
    set_address(USED, third);
    set(QUEUE_READY, 1);
}

static uint64_t data(int queue) { return physical + (uint64_t)place(queue, 3); }

/* Up to the features, which are all that are offered. */
static void begin(void)
{
    reset();
    memset(memory, 0, (size_t)place(QUEUES, 0));
    set(STATUS, 1);
    set(STATUS, 3);
    for (uint32_t half = 0; half < 2; half++) {
        set(FEATURES_SEL, half);
        set(DRIVER_SEL, half);
        set(DRIVER, get(FEATURES));
    }
    set(STATUS, 0xb);
    for (queues = 0; queues < QUEUES; queues++) {
        set(QUEUE_SEL, (uint32_t)queues);
        if (get(QUEUE_MAX) == 0)
            break;
    }
}

static void begin_with_queues(void)
{
    begin();
    for (int queue = 0; queue < queues; queue++)
        place_queue(queue, SIZE, physical + (uint64_t)place(queue, 0), physical + (uint64_t)place(queue, 1),
                    physical + (uint64_t)place(queue, 2));
    set(STATUS, ALL_OF_DRIVER);
}

static void describe(int queue, int index, uint64_t address, uint32_t length, uint16_t flags, uint16_t next)
{
    descriptors(queue)[index] = (struct descriptor){ address, length, flags, next };
}

/* What makes the descriptors of a queue; the chains begin at all of them. */
static void circle(int queue) { for (int i = 0; i < SIZE; i++) describe(queue, i, data(queue), 16, NEXT | WRITE * (queue == 0), (uint16_t)i); }
static void long_circle(int queue) { for (int i = 0; i < SIZE; i++) describe(queue, i, data(queue), 16, NEXT, (uint16_t)((i + 1) % SIZE)); }
static void beyond_memory(int queue) { for (int i = 0; i < SIZE; i++) describe(queue, i, 1ULL << (32 + i), 4096, WRITE * (i % 2), 0); }
static void round_the_end(int queue) { for (int i = 0; i < SIZE; i++) describe(queue, i, -16ULL, 0xffffffff, WRITE * (i % 2), 0); }
static void endless_length(int queue) { for (int i = 0; i < SIZE; i++) describe(queue, i, data(queue), 0xffffffff, NEXT * (i % 3 == 0) | WRITE * (i % 2), (uint16_t)(i ^ 1)); }
static void next_beyond(int queue) { for (int i = 0; i < SIZE; i++) describe(queue, i, data(queue), 16, NEXT, (uint16_t)(SIZE + 4000 * i)); }
static void no_length(int queue) { for (int i = 0; i < SIZE; i++) describe(queue, i, data(queue), 0, WRITE * (i % 2), 0); }
static void nested_tables(int queue) { for (int i = 0; i < SIZE; i++) describe(queue, i, physical + (uint64_t)place(queue, 0), 16 * SIZE, INDIRECT | NEXT * (i % 2), (uint16_t)(i ^ 1)); }
static void odd_tables(int queue) { for (int i = 0; i < SIZE; i++) describe(queue, i, data(queue), (uint32_t)(17 << i), INDIRECT, 0); }
static void its_own_rings(int queue) { for (int i = 0; i < SIZE; i++) describe(queue, i, physical + (uint64_t)place(queue, i % 3), 4096, WRITE, 0); }
static void its_own_registers(int queue) { for (int i = 0; i < SIZE; i++) describe(queue, i, base + (uint64_t)device * REGISTERS, 256, WRITE * (i % 2), 0); }
static void wrong_direction(int queue)
{
    for (int i = 0; i < SIZE; i++)
        describe(queue, i, data(queue), 64, (uint16_t)(NEXT * (i % 4 != 3) | WRITE * (i % 2)), (uint16_t)(i + 1));
}

static void chance(int queue)
{
    uint64_t *words = (uint64_t *)descriptors(queue);
    for (int i = 0; i < 2 * SIZE; i++)
        words[i] = number();
    for (int i = 0; i < SIZE; i++)
        if (number() % 2)
            describe(queue, i, physical + number() % HUGE_PAGE, (uint32_t)(number() % 70000), (uint16_t)(number() % 8), (uint16_t)(number() % (SIZE + 1)));
    for (uint64_t *word = (uint64_t *)(memory + place(queue, 3)), *end = word + 512; word < end; word++)
        *word = number();
}

/* Offers chains; the index goes on by `step`. */
static void offer(int queue, uint16_t step, uint16_t first)
{
    volatile struct available *ring = available(queue);
    for (int i = 0; i < SIZE; i++)
        ring->ring[i] = (uint16_t)(first + i);
    __sync_synchronize();
    ring->index = (uint16_t)(ring->index + step);
    __sync_synchronize();
}

static void try_with(void (*make)(int), uint16_t step, uint16_t first)
{
    begin_with_queues();
    for (int queue = 0; queue < queues; queue++) {
        make(queue);
        offer(queue, step, first);
    }
    notify(2);
    usleep(2000);
    notify(1);
}

static void jumping_index(void)
{
    begin_with_queues();
    for (int round = 0; round < 40; round++) {
        for (int queue = 0; queue < queues; queue++) {
            long_circle(queue);
            offer(queue, (uint16_t)(round % 2 ? 0x8000 : 0xfff1), 0);
        }
        notify(1);
    }
}

static void impossible_places(void)
{
    const uint64_t places[] = { 1ULL << 40, -4096ULL, base, physical + 1, physical + HUGE_PAGE - 8 + (1ULL << 36), 0xfee00000, 0 };
    for (int first = 0; first < 7; first++)
        for (int which = 0; which < 3; which++) {
            uint64_t at[3] = { physical, physical + 4096, physical + 8192 };
            begin();
            at[which] = places[first];
            for (int queue = 0; queue < queues; queue++)
                place_queue(queue, SIZE, at[0], at[1], at[2]);
            set(STATUS, ALL_OF_DRIVER);
            notify(1);
        }
}

static void impossible_sizes(void)
{
    const uint32_t sizes[] = { 0, 3, 0x8000, 0xffff, 0xffffffff };
    for (int i = 0; i < 5; i++) {
        begin();
        for (int queue = 0; queue < queues; queue++)
            place_queue(queue, sizes[i], physical, physical + 4096, physical + 8192);
        set(STATUS, ALL_OF_DRIVER);
        notify(1);
    }
}

static void same_place(void)
{
    begin();
    for (int queue = 0; queue < queues; queue++)
        place_queue(queue, SIZE, physical, physical, physical);
    set(STATUS, ALL_OF_DRIVER);
    for (int round = 0; round < 20; round++) {
        chance(0);
        notify(1);
    }
}

static void resets_in_the_middle(void)
{
    for (int round = 0; round < 60; round++) {
        begin_with_queues();
        for (int queue = 0; queue < queues; queue++) {
            wrong_direction(queue);
            offer(queue, SIZE, 0);
        }
        notify(1);
        if (round % 3)
            usleep((useconds_t)(number() % 1000));
    }
}

static void storm(void)
{
    begin_with_queues();
    for (int round = 0; round < 3000; round++)
        set(NOTIFY, round % 3 ? (uint32_t)(round % queues) : (uint32_t)number());
}

static volatile int racing;

static void *change(void *unused)
{
    while (racing)
        for (int queue = 0; queue < queues; queue++)
            chance(queue);
    return unused;
}

static void changes_meanwhile(void)
{
    pthread_t other;
    begin_with_queues();
    racing = 1;
    pthread_create(&other, NULL, change, NULL);
    for (int round = 0; round < 300; round++) {
        /* A queue that is out of use is so until a reset. */
        if (round % 30 == 29)
            begin_with_queues();
        for (int queue = 0; queue < queues; queue++)
            offer(queue, 3, 0);
        notify(1);
    }
    racing = 0;
    pthread_join(other, NULL);
}

static void any_register(void)
{
    for (int round = 0; round < 1500; round++) {
        int offset = (int)(number() % 0x200);
        uint32_t value = (uint32_t)number();
        /* Rings elsewhere would be written into the kernel's memory. */
        if (offset >= DESCRIPTORS && offset < USED + 8)
            value = offset & 4 ? value << 31 : (uint32_t)physical + value % HUGE_PAGE;
        if (round % 50 == 0)
            begin_with_queues();
        switch (number() % 4) {
        case 0: registers[device * REGISTERS + offset] = (uint8_t)value; break;
        case 1: *(volatile uint16_t *)(registers + device * REGISTERS + (offset & ~1)) = (uint16_t)value; break;
        case 2: get(offset & ~3); break;
        default: set(offset & ~3, value); break;
        }
    }
}

static void by_chance(void)
{
    for (int round = 0; round < 40; round++)
        try_with(chance, (uint16_t)(1 + number() % SIZE), 0);
}

static const struct { const char *name; void (*make)(int); uint16_t step, first; void (*all)(void); } attacks[] = {
    { "circle", circle, 1, 0, 0 },
    { "long-circle", long_circle, SIZE, 0, 0 },
    { "beyond-memory", beyond_memory, SIZE, 0, 0 },
    { "round-the-end", round_the_end, SIZE, 0, 0 },
    { "endless-length", endless_length, SIZE, 0, 0 },
    { "next-beyond", next_beyond, SIZE, 0, 0 },
    { "no-length", no_length, SIZE, 0, 0 },
    { "nested-tables", nested_tables, SIZE, 0, 0 },
    { "odd-tables", odd_tables, SIZE, 0, 0 },
    { "its-own-rings", its_own_rings, SIZE, 0, 0 },
    { "its-own-registers", its_own_registers, SIZE, 0, 0 },
    { "wrong-direction", wrong_direction, SIZE, 0, 0 },
    { "heads-beyond", long_circle, SIZE, SIZE, 0 },
    { "more-than-there-are", no_length, SIZE + 1, 0, 0 },
    { "jumping-index", 0, 0, 0, jumping_index },
    { "impossible-places", 0, 0, 0, impossible_places },
    { "impossible-sizes", 0, 0, 0, impossible_sizes },
    { "same-place", 0, 0, 0, same_place },
    { "resets-in-the-middle", 0, 0, 0, resets_in_the_middle },
    { "storm", 0, 0, 0, storm },
    { "changes-meanwhile", 0, 0, 0, changes_meanwhile },
    { "any-register", 0, 0, 0, any_register },
    { "by-chance", 0, 0, 0, by_chance },
};

static int fail(const char *what)
{
    perror(what);
    return 1;
}

int main(int count, char **arguments)
{
    int file;
    uint64_t entry = 0;

    if (count != 2)
        return 2;
    base = strtoull(arguments[1], NULL, 0);
    memory = mmap(NULL, HUGE_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB | MAP_POPULATE, -1, 0);
    if (memory == MAP_FAILED)
        return fail("a huge page");
    memory[0] = 1;
    file = open("/proc/self/pagemap", O_RDONLY);
    if (pread(file, &entry, 8, (off_t)((uintptr_t)memory / 4096 * 8)) != 8)
        return fail("pagemap");
    physical = (entry & ((1ULL << 55) - 1)) * 4096;
    if (physical == 0)
        return fail("its address");
    file = open("/dev/mem", O_RDWR | O_SYNC);
    registers = mmap(NULL, DEVICES * REGISTERS, PROT_READ | PROT_WRITE, MAP_SHARED, file, (off_t)base);
    if (registers == MAP_FAILED)
        return fail("/dev/mem");
    for (device = 0; device < DEVICES; device++) {
        uint32_t id = get(MAGIC) == 0x74726976 ? get(DEVICE_ID) : 0;
        if (id != 1 && id != 19 && id != 26)
            continue;
        for (size_t i = 0; i < sizeof(attacks) / sizeof(attacks[0]); i++) {
            if (attacks[i].make)
                try_with(attacks[i].make, attacks[i].step, attacks[i].first);
            else
                attacks[i].all();
            printf("attacked %u %s\n", id, attacks[i].name);
            fflush(stdout);
        }
        reset();
    }
    return 0;
}
