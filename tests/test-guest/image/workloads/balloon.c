/*
 * The workload "balloon": a driver of virtio-balloon (virtio 1.2, section 5.5)
 * that gives up the first pages of a pool, as many as the host asks for, and
 * takes them back. Each page of the pool that it has bears its own number;
 * those that come back have to read as zeroes. After each change it prints how
 * many pages the balloon holds, and how many were wrong so far.
 */
#include "../text.h"
#include "../virtio/network.h"
#include "kernel.h"
#include "workloads.h"

#define DEVICE_ID_BALLOON 5
#define INFLATE_QUEUE 0
#define DEFLATE_QUEUE 1
#define BALLOON_QUEUES 2
#define REGISTER_TARGET REGISTER_CONFIGURATION
#define REGISTER_ACTUAL (REGISTER_CONFIGURATION + 4)

#define PAGE 4096
/* Memory that nobody else uses. */
#define POOL 0x1000000
#define POOL_PAGES 8192
#define PAGES_PER_CHAIN 256
/* Between two looks at the target, which cost an exit each. */
#define PAUSES 10000

static struct simple_device balloon;
static uint32_t numbers[PAGES_PER_CHAIN];
static uint64_t wrong;

static volatile uint64_t *page_at(uint32_t page)
{
    return (volatile uint64_t *)(POOL + (uint64_t)page * PAGE);
}

/* The page's first and last word tell which one it is. */
static void mark(uint32_t page)
{
    page_at(page)[0] = page + 1;
    page_at(page)[PAGE / 8 - 1] = ~(uint64_t)page;
}

static void check_mark(uint32_t page)
{
    wrong += page_at(page)[0] != page + 1 || page_at(page)[PAGE / 8 - 1] != ~(uint64_t)page;
}

static void check_zero(uint32_t page)
{
    wrong += page_at(page)[0] != 0 || page_at(page)[PAGE / 8 - 1] != 0;
}

/* Hands pages to a queue, and waits until the device has seen them. */
static int move_pages(uint32_t queue, uint32_t first, uint32_t end)
{
    int outcome = 0;

    while (outcome == 0 && first < end) {
        uint32_t count = end - first < PAGES_PER_CHAIN ? end - first : PAGES_PER_CHAIN;
        uint32_t head, used;
        for (uint32_t i = 0; i < count; i++)
            numbers[i] = POOL / PAGE + first + i;
        queue_describe(&balloon.queues[queue], 0, (uint64_t)numbers, count * (uint32_t)sizeof(numbers[0]), 0);
        queue_offer(&balloon.queues[queue], 0);
        simple_notify(&balloon, queue);
        outcome = simple_wait(&balloon, queue, &head, &used);
        first += count;
    }
    return outcome;
}

/* From so many pages to so many. */
static int resize(uint32_t held, uint32_t target)
{
    int outcome = target > held ? move_pages(INFLATE_QUEUE, held, target) : move_pages(DEFLATE_QUEUE, target, held);

    for (uint32_t page = target; page < held; page++) {
        check_zero(page);
        mark(page);
    }
    for (uint32_t page = target; page < POOL_PAGES; page++)
        check_mark(page);
    register_write(balloon.base, REGISTER_ACTUAL, target);
    return outcome;
}

static void report(uint32_t held)
{
    print_number("held ", held);
    print_number("wrong ", wrong);
}

void balloon_pages(void)
{
    uint32_t held = 0;

    if (this_vcpu()->index != 0)
        return;
    for (uint32_t page = 0; page < POOL_PAGES; page++)
        mark(page);
    balloon.base = find_device(DEVICE_ID_BALLOON);
    balloon.queue_count = BALLOON_QUEUES;
    int outcome = simple_start(&balloon, 0);
    report(held);
    while (outcome == 0) {
        uint32_t target = register_read(balloon.base, REGISTER_TARGET);
        if (target > POOL_PAGES)
            target = POOL_PAGES;
        if (target != held) {
            outcome = resize(held, target);
            held = target;
            report(held);
        }
        for (uint32_t i = 0; i < PAUSES; i++)
            __asm__ volatile("pause");
    }
    print("the balloon failed\r\n");
}
