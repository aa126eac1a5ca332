/* Queues of impossible sizes in impossible places, and features that nobody has offered. */
#include "attacks.h"

#define EVERYTHING 0xffffffff

static uint64_t address_of(enum place place, uint64_t proper, uint64_t table)
{
    switch (place) {
    case NOWHERE:
        return 1ull << 40;
    case HOLE:
        return DEVICES;
    case REGISTERS:
        return options.console;
    case MISALIGNED:
        return proper + 1;
    case WRAPPING:
        return 0xfffffffffffffff0;
    case STRADDLING:
        return memory_end() - 16;
    case ON_TABLE:
        return table;
    default:
        return proper;
    }
}

static void place(struct console *console, uint32_t offset, enum place place, const void *proper, uint64_t table)
{
    if (place != UNSET)
        register_write_address(console->base, offset, address_of(place, (uint64_t)proper, table));
}

static void set_up_queue_as(struct console *console, const struct queue_attack *attack, uint32_t number)
{
    const struct virtqueue *queue = &console->queues[number];
    uint64_t table = (uint64_t)queue->table;

    register_write(console->base, REGISTER_QUEUE_SELECT, number);
    register_write(console->base, REGISTER_QUEUE_SIZE, attack->size);
    place(console, REGISTER_QUEUE_TABLE, attack->table, queue->table, table);
    place(console, REGISTER_QUEUE_AVAILABLE, attack->available, &queue->available, table);
    place(console, REGISTER_QUEUE_USED, attack->used, &queue->used, table);
    register_write(console->base, REGISTER_QUEUE_READY, attack->ready);
}

/* As console_start(), but for one queue. */
int start_with_queue_attack(struct console *console, const struct queue_attack *attack, uint32_t victim)
{
    console_reset(console);
    int outcome = console_negotiate(console);
    if (outcome != 0)
        return outcome;
    for (uint32_t queue = 0; queue < QUEUES; queue++) {
        if (queue == victim)
            set_up_queue_as(console, attack, queue);
        else
            console_set_up_queue(console, queue);
    }
    return console_run(console);
}

const struct queue_attack queue_attacks[] = {
    { "queue of size 0", 0, PROPER, PROPER, PROPER, 1, NEEDS_NOTICE },
    { "queue of size 1", 1, PROPER, PROPER, PROPER, 1, 0 },
    { "queue of size 3", 3, PROPER, PROPER, PROPER, 1, NEEDS_NOTICE },
    { "queue of size 65535", 65535, PROPER, PROPER, PROPER, 1, NEEDS_NOTICE },
    { "queue of size 65536", 65536, PROPER, PROPER, PROPER, 1, NEEDS_NOTICE },
    { "queue of size 65544", 65544, PROPER, PROPER, PROPER, 1, NEEDS_NOTICE },
    { "queue of size 32768", 32768, PROPER, PROPER, PROPER, 1, NEEDS_NOTICE },
    { "queue of size 2^32 - 1", EVERYTHING, PROPER, PROPER, PROPER, 1, NEEDS_NOTICE },
    { "queue without addresses", QUEUE_SIZE, UNSET, UNSET, UNSET, 1, NEEDS_NOTICE },
    { "descriptor table far outside memory", QUEUE_SIZE, NOWHERE, PROPER, PROPER, 1, NEEDS_NOTICE },
    { "available ring far outside memory", QUEUE_SIZE, PROPER, NOWHERE, PROPER, 1, NEEDS_NOTICE },
    { "used ring far outside memory", QUEUE_SIZE, PROPER, PROPER, NOWHERE, 1, NEEDS_NOTICE },
    { "descriptor table in the devices' hole", QUEUE_SIZE, HOLE, PROPER, PROPER, 1, NEEDS_NOTICE },
    { "available ring in the devices' hole", QUEUE_SIZE, PROPER, HOLE, PROPER, 1, NEEDS_NOTICE },
    { "used ring in the devices' hole", QUEUE_SIZE, PROPER, PROPER, HOLE, 1, NEEDS_NOTICE },
    { "queue on the device's registers", QUEUE_SIZE, REGISTERS, REGISTERS, REGISTERS, 1, NEEDS_NOTICE },
    { "descriptor table misaligned", QUEUE_SIZE, MISALIGNED, PROPER, PROPER, 1, NEEDS_NOTICE },
    { "available ring misaligned", QUEUE_SIZE, PROPER, MISALIGNED, PROPER, 1, NEEDS_NOTICE },
    { "used ring misaligned", QUEUE_SIZE, PROPER, PROPER, MISALIGNED, 1, NEEDS_NOTICE },
    { "descriptor table around 2^64", QUEUE_SIZE, WRAPPING, PROPER, PROPER, 1, NEEDS_NOTICE },
    { "available ring around 2^64", QUEUE_SIZE, PROPER, WRAPPING, PROPER, 1, NEEDS_NOTICE },
    { "used ring around 2^64", QUEUE_SIZE, PROPER, PROPER, WRAPPING, 1, NEEDS_NOTICE },
    { "descriptor table over the end of memory", QUEUE_SIZE, STRADDLING, PROPER, PROPER, 1, NEEDS_NOTICE },
    { "available ring over the end of memory", QUEUE_SIZE, PROPER, STRADDLING, PROPER, 1, NEEDS_NOTICE },
    { "used ring over the end of memory", QUEUE_SIZE, PROPER, PROPER, STRADDLING, 1, NEEDS_NOTICE },
    { "rings on the descriptor table", QUEUE_SIZE, PROPER, ON_TABLE, ON_TABLE, 1, NEEDS_NOTICE },
    { "queue never ready", QUEUE_SIZE, PROPER, PROPER, PROPER, 0, 0 },
    { "queue ready with all ones", QUEUE_SIZE, PROPER, PROPER, PROPER, EVERYTHING, 0 },
};

const uint32_t queue_attack_count = sizeof(queue_attacks) / sizeof(queue_attacks[0]);

/* ---- starts in the wrong order ---- */

static void set_status(struct console *console, uint32_t status)
{
    register_write(console->base, REGISTER_STATUS, status);
}

static void accept_features(struct console *console, uint32_t low, uint32_t high)
{
    register_write(console->base, REGISTER_DRIVER_FEATURES_SELECT, 0);
    register_write(console->base, REGISTER_DRIVER_FEATURES, low);
    register_write(console->base, REGISTER_DRIVER_FEATURES_SELECT, 1);
    register_write(console->base, REGISTER_DRIVER_FEATURES, high);
}

static void set_up_queues(struct console *console)
{
    for (uint32_t queue = 0; queue < QUEUES; queue++)
        console_set_up_queue(console, queue);
}

static void notify_all(struct console *console)
{
    for (uint32_t queue = 0; queue < QUEUES; queue++)
        console_notify(console, queue);
}

static int every_feature(struct console *console)
{
    console_reset(console);
    set_status(console, STATUS_ACKNOWLEDGE | STATUS_DRIVER);
    accept_features(console, EVERYTHING, EVERYTHING);
    set_status(console, STATUS_ACKNOWLEDGE | STATUS_DRIVER | STATUS_FEATURES_OK);
    int status = (int)register_read(console->base, REGISTER_STATUS);
    set_up_queues(console);
    set_status(console, STATUS_ACKNOWLEDGE | STATUS_DRIVER | STATUS_FEATURES_OK | STATUS_DRIVER_OK);
    notify_all(console);
    return status;
}

static int no_feature(struct console *console)
{
    console_reset(console);
    set_status(console, STATUS_ACKNOWLEDGE | STATUS_DRIVER);
    accept_features(console, 0, 0);
    set_status(console, STATUS_ACKNOWLEDGE | STATUS_DRIVER | STATUS_FEATURES_OK);
    int status = (int)register_read(console->base, REGISTER_STATUS);
    set_up_queues(console);
    set_status(console, STATUS_ACKNOWLEDGE | STATUS_DRIVER | STATUS_FEATURES_OK | STATUS_DRIVER_OK);
    notify_all(console);
    return status;
}

static int features_beyond_the_second_half(struct console *console)
{
    console_reset(console);
    set_status(console, STATUS_ACKNOWLEDGE | STATUS_DRIVER);
    for (uint32_t half = 2; half != 0; half <<= 1) {
        register_write(console->base, REGISTER_DRIVER_FEATURES_SELECT, half);
        register_write(console->base, REGISTER_DRIVER_FEATURES, EVERYTHING);
        register_write(console->base, REGISTER_DEVICE_FEATURES_SELECT, half);
        if (register_read(console->base, REGISTER_DEVICE_FEATURES) != 0)
            return (int)half;
    }
    return 0;
}

static int driver_ok_first(struct console *console)
{
    console_reset(console);
    set_up_queues(console);
    set_status(console, STATUS_DRIVER_OK);
    notify_all(console);
    return (int)register_read(console->base, REGISTER_STATUS);
}

static int driver_ok_without_features_ok(struct console *console)
{
    console_reset(console);
    set_status(console, STATUS_ACKNOWLEDGE | STATUS_DRIVER);
    set_up_queues(console);
    set_status(console, STATUS_ACKNOWLEDGE | STATUS_DRIVER | STATUS_DRIVER_OK);
    notify_all(console);
    return (int)register_read(console->base, REGISTER_STATUS);
}

static int every_status(struct console *console)
{
    console_reset(console);
    for (uint32_t status = 255; status > 0; status--) {
        set_status(console, status);
        set_status(console, status << 8 | status);
    }
    return (int)register_read(console->base, REGISTER_STATUS);
}

static int notify_before_driver_ok(struct console *console)
{
    console_reset(console);
    int outcome = console_negotiate(console);
    set_up_queues(console);
    for (uint32_t queue = 0; queue < QUEUES; queue++) {
        queue_describe(&console->queues[queue], 0, (uint64_t)attack_buffer, 64, 0);
        queue_offer(&console->queues[queue], 0);
    }
    notify_all(console);
    return outcome;
}

static int resets_in_a_row(struct console *console)
{
    int outcome = 0;

    for (uint32_t turn = 0; turn < 20 && outcome == 0; turn++) {
        outcome = console_start(console);
        set_status(console, STATUS_RESET);
        notify_all(console);
    }
    return outcome;
}

static int driver_failed(struct console *console)
{
    int outcome = console_start(console);

    set_status(console, STATUS_FAILED);
    notify_all(console);
    return outcome;
}

/* Takes DRIVER_OK and FEATURES_OK back. */
static int status_goes_back(struct console *console)
{
    int outcome = console_start(console);

    set_status(console, STATUS_ACKNOWLEDGE | STATUS_DRIVER);
    accept_features(console, 0, 0);
    notify_all(console);
    set_status(console, STATUS_ACKNOWLEDGE | STATUS_DRIVER | STATUS_FEATURES_OK | STATUS_DRIVER_OK);
    notify_all(console);
    return outcome;
}

/* Moves every queue away under the device. */
static int queues_move(struct console *console)
{
    int outcome = console_start(console);

    for (uint32_t queue = 0; queue < QUEUES; queue++) {
        register_write(console->base, REGISTER_QUEUE_SELECT, queue);
        register_write(console->base, REGISTER_QUEUE_SIZE, 4);
        register_write_address(console->base, REGISTER_QUEUE_TABLE, 1ull << 40);
        register_write_address(console->base, REGISTER_QUEUE_AVAILABLE, 0xfffffffffffffff0);
        register_write_address(console->base, REGISTER_QUEUE_USED, DEVICES);
        console_notify(console, queue);
        register_write(console->base, REGISTER_QUEUE_READY, 0);
        console_notify(console, queue);
        register_write(console->base, REGISTER_QUEUE_READY, 1);
        console_notify(console, queue);
    }
    return outcome;
}

const struct start_attack start_attacks[] = {
    { "every feature accepted", every_feature, COSTS_DEVICE },
    { "no feature accepted", no_feature, COSTS_DEVICE },
    { "features beyond bit 63", features_beyond_the_second_half, COSTS_DEVICE },
    { "DRIVER_OK first of all", driver_ok_first, COSTS_DEVICE },
    { "DRIVER_OK without FEATURES_OK", driver_ok_without_features_ok, COSTS_DEVICE },
    { "every status", every_status, COSTS_DEVICE },
    { "notifications before DRIVER_OK", notify_before_driver_ok, COSTS_DEVICE },
    { "resets in a row", resets_in_a_row, COSTS_DEVICE },
    { "FAILED while running", driver_failed, COSTS_DEVICE },
    { "status goes back", status_goes_back, COSTS_DEVICE },
    { "queues move while running", queues_move, COSTS_DEVICE },
};

const uint32_t start_attack_count = sizeof(start_attacks) / sizeof(start_attacks[0]);
