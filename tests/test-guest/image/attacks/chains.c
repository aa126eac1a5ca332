/* Chains of descriptors that no driver makes. */
#include "attacks.h"

#define BUFFER ((uint64_t)attack_buffer)
#define SOME 64
#define ALL_ONES 0xffffffff

static void put(struct virtqueue *queue, uint32_t index, uint64_t address, uint32_t length, uint32_t flags)
{
    queue_describe(queue, index, address, length, flags);
}

static void link(struct virtqueue *queue, uint32_t index, uint32_t next)
{
    queue->table[index].flags |= DESCRIPTOR_NEXT;
    queue->table[index].next = (uint16_t)next;
}

static void offer_one(struct virtqueue *queue, uint64_t address, uint32_t length, uint32_t flags)
{
    put(queue, 0, address, length, flags);
    queue_offer(queue, 0);
}

/* ---- loops ---- */

static void loop_of_one(struct virtqueue *queue, uint16_t direction)
{
    put(queue, 0, BUFFER, SOME, direction);
    link(queue, 0, 0);
    queue_offer(queue, 0);
}

static void loop_of_two(struct virtqueue *queue, uint16_t direction)
{
    for (uint32_t i = 0; i < 2; i++) {
        put(queue, i, BUFFER, SOME, direction);
        link(queue, i, 1 - i);
    }
    queue_offer(queue, 0);
}

static void loop_of_all(struct virtqueue *queue, uint16_t direction)
{
    for (uint32_t i = 0; i < QUEUE_SIZE; i++) {
        put(queue, i, BUFFER, 1, direction);
        link(queue, i, (i + 1) % QUEUE_SIZE);
    }
    queue_offer(queue, 0);
}

static void loop_of_empty_ones(struct virtqueue *queue, uint16_t direction)
{
    put(queue, 0, BUFFER, 0, direction);
    link(queue, 0, 0);
    queue_offer(queue, 0);
}

static void next_is_the_size(struct virtqueue *queue, uint16_t direction)
{
    put(queue, 0, BUFFER, SOME, direction);
    link(queue, 0, QUEUE_SIZE);
    queue_offer(queue, 0);
}

static void next_is_far_off(struct virtqueue *queue, uint16_t direction)
{
    put(queue, 0, BUFFER, SOME, direction);
    link(queue, 0, 0xffff);
    queue_offer(queue, 0);
}

/* ---- lengths ---- */

static void empty(struct virtqueue *queue, uint16_t direction)
{
    offer_one(queue, BUFFER, 0, direction);
}

static void empty_in_between(struct virtqueue *queue, uint16_t direction)
{
    for (uint32_t i = 0; i < 3; i++) {
        put(queue, i, BUFFER, i == 1 ? 0 : SOME, direction);
        if (i < 2)
            link(queue, i, i + 1);
    }
    queue_offer(queue, 0);
}

static void nearly_4_gib(struct virtqueue *queue, uint16_t direction)
{
    offer_one(queue, BUFFER, ALL_ONES, direction);
}

static void sum_above_4_gib(struct virtqueue *queue, uint16_t direction)
{
    for (uint32_t i = 0; i < QUEUE_SIZE; i++) {
        put(queue, i, BUFFER, 0x80000000, direction);
        if (i + 1 < QUEUE_SIZE)
            link(queue, i, i + 1);
    }
    queue_offer(queue, 0);
}

static void all_of_memory(struct virtqueue *queue, uint16_t direction)
{
    /* Only to be read: written, it would be the guest's own end. */
    if (direction)
        offer_one(queue, BUFFER, sizeof(attack_buffer), direction);
    else
        offer_one(queue, 0, (uint32_t)memory_end(), 0);
}

/* ---- addresses ---- */

static void far_outside(struct virtqueue *queue, uint16_t direction)
{
    offer_one(queue, 1ull << 40, SOME, direction);
}

static void second_half_outside(struct virtqueue *queue, uint16_t direction)
{
    put(queue, 0, BUFFER, SOME, direction);
    put(queue, 1, 1ull << 52, SOME, direction);
    link(queue, 0, 1);
    queue_offer(queue, 0);
}

static void in_the_hole(struct virtqueue *queue, uint16_t direction)
{
    offer_one(queue, DEVICES, SOME, direction);
}

static void on_the_registers(struct virtqueue *queue, uint16_t direction)
{
    offer_one(queue, options.console, SOME, direction);
}

static void on_the_local_apic(struct virtqueue *queue, uint16_t direction)
{
    offer_one(queue, 0xfee00000, SOME, direction);
}

static void over_the_end_of_memory(struct virtqueue *queue, uint16_t direction)
{
    offer_one(queue, memory_end() - 16, SOME, direction);
}

static void at_the_end_of_memory(struct virtqueue *queue, uint16_t direction)
{
    offer_one(queue, memory_end(), SOME, direction);
}

static void around_2_to_64(struct virtqueue *queue, uint16_t direction)
{
    offer_one(queue, 0xfffffffffffffff0, SOME, direction);
}

static void up_to_2_to_64(struct virtqueue *queue, uint16_t direction)
{
    offer_one(queue, 0xffffffffffffffc0, SOME, direction);
}

static void last_byte_and_4_gib(struct virtqueue *queue, uint16_t direction)
{
    offer_one(queue, UINT64_MAX, ALL_ONES, direction);
}

static void on_its_own_table(struct virtqueue *queue, uint16_t direction)
{
    offer_one(queue, (uint64_t)queue->table, sizeof(queue->table), direction);
}

static void on_its_own_rings(struct virtqueue *queue, uint16_t direction)
{
    offer_one(queue, (uint64_t)&queue->available, sizeof(queue->available) + sizeof(queue->used), direction);
}

/* ---- flags ---- */

static void wrong_direction(struct virtqueue *queue, uint16_t direction)
{
    offer_one(queue, BUFFER, SOME, direction ^ DESCRIPTOR_WRITE);
}

static void wrong_direction_second(struct virtqueue *queue, uint16_t direction)
{
    put(queue, 0, BUFFER, SOME, direction);
    put(queue, 1, BUFFER, SOME, direction ^ DESCRIPTOR_WRITE);
    link(queue, 0, 1);
    queue_offer(queue, 0);
}

static void wrong_direction_first(struct virtqueue *queue, uint16_t direction)
{
    put(queue, 0, BUFFER, SOME, direction ^ DESCRIPTOR_WRITE);
    put(queue, 1, BUFFER, SOME, direction);
    link(queue, 0, 1);
    queue_offer(queue, 0);
}

/* A table for INDIRECT, which is never offered. */
static struct descriptor *indirect_table(uint16_t direction)
{
    struct descriptor *table = (struct descriptor *)attack_buffer;

    for (uint32_t i = 0; i < 4; i++)
        table[i] = (struct descriptor){ BUFFER + 2048, SOME, (uint16_t)(direction | DESCRIPTOR_NEXT), (uint16_t)((i + 1) % 4) };
    return table;
}

static void indirect(struct virtqueue *queue, uint16_t direction)
{
    struct descriptor *table = indirect_table(direction);

    table[3].flags = direction;
    offer_one(queue, (uint64_t)table, 4 * sizeof(*table), DESCRIPTOR_INDIRECT);
}

static void indirect_loop(struct virtqueue *queue, uint16_t direction)
{
    offer_one(queue, (uint64_t)indirect_table(direction), 4 * sizeof(struct descriptor), DESCRIPTOR_INDIRECT);
}

static void indirect_to_itself(struct virtqueue *queue, uint16_t direction)
{
    offer_one(queue, (uint64_t)queue->table, sizeof(queue->table), direction | DESCRIPTOR_INDIRECT);
}

static void indirect_of_odd_length(struct virtqueue *queue, uint16_t direction)
{
    offer_one(queue, (uint64_t)indirect_table(direction), 17, DESCRIPTOR_INDIRECT);
}

static void indirect_of_4_gib(struct virtqueue *queue, uint16_t direction)
{
    offer_one(queue, (uint64_t)indirect_table(direction), 0xfffffff0, DESCRIPTOR_INDIRECT);
}

static void indirect_outside(struct virtqueue *queue, uint16_t direction)
{
    offer_one(queue, 1ull << 40, 64, direction | DESCRIPTOR_INDIRECT);
}

static void indirect_and_next(struct virtqueue *queue, uint16_t direction)
{
    put(queue, 0, (uint64_t)indirect_table(direction), 64, DESCRIPTOR_INDIRECT);
    link(queue, 0, 0);
    queue_offer(queue, 0);
}

static void all_flags(struct virtqueue *queue, uint16_t direction)
{
    (void)direction;
    offer_one(queue, BUFFER, SOME, 0xffff);
}

/* ---- the available ring ---- */

static void fill_table(struct virtqueue *queue, uint16_t direction)
{
    for (uint32_t i = 0; i < QUEUE_SIZE; i++)
        put(queue, i, BUFFER, SOME, direction);
}

static void move_index(struct virtqueue *queue, uint16_t by)
{
    __atomic_store_n(&queue->available.index, (uint16_t)(queue->available.index + by), __ATOMIC_SEQ_CST);
}

static void one_too_many(struct virtqueue *queue, uint16_t direction)
{
    fill_table(queue, direction);
    move_index(queue, QUEUE_SIZE + 1);
}

static void half_around(struct virtqueue *queue, uint16_t direction)
{
    fill_table(queue, direction);
    move_index(queue, 0x8000);
}

static void index_goes_back(struct virtqueue *queue, uint16_t direction)
{
    fill_table(queue, direction);
    move_index(queue, 0xffff);
}

static void head_is_the_size(struct virtqueue *queue, uint16_t direction)
{
    fill_table(queue, direction);
    queue_offer(queue, QUEUE_SIZE);
}

static void head_is_far_off(struct virtqueue *queue, uint16_t direction)
{
    fill_table(queue, direction);
    queue_offer(queue, 0xffff);
}

static void always_the_same_head(struct virtqueue *queue, uint16_t direction)
{
    fill_table(queue, direction);
    for (uint32_t i = 0; i < QUEUE_SIZE; i++)
        queue_offer(queue, 3);
}

static void flags_of_the_ring(struct virtqueue *queue, uint16_t direction)
{
    fill_table(queue, direction);
    queue->available.flags = 0xffff;
    queue->available.used_event = 0xffff;
    queue_offer(queue, 0);
}

/* Descriptors and heads of random numbers, changed while the device looks at them. */
static void scribble(struct virtqueue *queue, uint16_t direction)
{
    fill_table(queue, direction);
    for (uint32_t turn = 0; turn < 300; turn++) {
        uint64_t number = random_number();
        struct descriptor *descriptor = &queue->table[number % QUEUE_SIZE];
        descriptor->address = number & 64 ? number : BUFFER + (number >> 32) % 4096;
        descriptor->length = (uint32_t)(number >> 20) & (number & 128 ? ALL_ONES : 63);
        /* Where it lets the device write at all, that is to the buffer. */
        descriptor->flags = (uint16_t)(number >> 8 & (number & 64 ? 7 : 1)) | direction;
        descriptor->next = (uint16_t)(number >> 40 & 15);
        queue->available.heads[number >> 4 & (QUEUE_SIZE - 1)] = (uint16_t)(number >> 44 & 15);
        move_index(queue, 1);
        if (turn % 16 == 0)
            register_write(options.console, REGISTER_QUEUE_NOTIFY, (uint32_t)(number >> 50) % QUEUES);
    }
}

/* As fast as it can, for as long as the device does what it is told. */
static void endless_refill(struct virtqueue *queue, uint16_t direction)
{
    fill_table(queue, direction);
    for (uint32_t turn = 0; turn < 20000; turn++) {
        uint16_t outstanding = (uint16_t)(queue->available.index - __atomic_load_n(&queue->used.index, __ATOMIC_ACQUIRE));
        if (outstanding < QUEUE_SIZE)
            queue_offer(queue, queue->available.index % QUEUE_SIZE);
        if (turn % 256 == 0) {
            for (uint32_t number = 2; number < QUEUES; number++)
                register_write(options.console, REGISTER_QUEUE_NOTIFY, number);
        }
    }
}

const struct chain_attack chain_attacks[] = {
    { "descriptor that is its own next", loop_of_one, NEEDS_NOTICE },
    { "loop of two descriptors", loop_of_two, NEEDS_NOTICE },
    { "loop of all descriptors", loop_of_all, NEEDS_NOTICE },
    { "loop of an empty descriptor", loop_of_empty_ones, NEEDS_NOTICE },
    { "next is the queue's size", next_is_the_size, NEEDS_NOTICE },
    { "next is 0xffff", next_is_far_off, NEEDS_NOTICE },
    { "length 0", empty, NEEDS_NOTICE },
    { "length 0 in between", empty_in_between, 0 },
    { "length 4 GiB - 1", nearly_4_gib, NEEDS_NOTICE },
    { "chain of 16 GiB", sum_above_4_gib, NEEDS_NOTICE },
    { "all of memory", all_of_memory, 0 },
    { "address far outside memory", far_outside, NEEDS_NOTICE },
    { "second descriptor far outside memory", second_half_outside, NEEDS_NOTICE },
    { "address in the devices' hole", in_the_hole, NEEDS_NOTICE },
    { "address of the device's registers", on_the_registers, NEEDS_NOTICE },
    { "address of the local APIC", on_the_local_apic, NEEDS_NOTICE },
    { "buffer over the end of memory", over_the_end_of_memory, NEEDS_NOTICE },
    { "buffer at the end of memory", at_the_end_of_memory, NEEDS_NOTICE },
    { "buffer around 2^64", around_2_to_64, NEEDS_NOTICE },
    { "buffer up to 2^64", up_to_2_to_64, NEEDS_NOTICE },
    { "address and length all ones", last_byte_and_4_gib, NEEDS_NOTICE },
    { "buffer is the descriptor table", on_its_own_table, 0 },
    { "buffer is the rings", on_its_own_rings, 0 },
    { "wrong direction", wrong_direction, NEEDS_NOTICE },
    { "wrong direction, second descriptor", wrong_direction_second, NEEDS_NOTICE },
    { "wrong direction, first descriptor", wrong_direction_first, NEEDS_NOTICE },
    { "indirect", indirect, NEEDS_NOTICE },
    { "indirect loop", indirect_loop, NEEDS_NOTICE },
    { "indirect to itself", indirect_to_itself, NEEDS_NOTICE },
    { "indirect of 17 bytes", indirect_of_odd_length, NEEDS_NOTICE },
    { "indirect of 4 GiB", indirect_of_4_gib, NEEDS_NOTICE },
    { "indirect outside memory", indirect_outside, NEEDS_NOTICE },
    { "indirect with a next", indirect_and_next, NEEDS_NOTICE },
    { "all flags", all_flags, NEEDS_NOTICE },
    { "index one too far", one_too_many, NEEDS_NOTICE },
    { "index half around", half_around, NEEDS_NOTICE },
    { "index goes back", index_goes_back, 0 },
    { "head is the queue's size", head_is_the_size, NEEDS_NOTICE },
    { "head is 0xffff", head_is_far_off, NEEDS_NOTICE },
    { "always the same head", always_the_same_head, 0 },
    { "all flags of the available ring", flags_of_the_ring, 0 },
    { "random descriptors, changing", scribble, 0 },
    { "endless refill", endless_refill, 0 },
};

const uint32_t chain_attack_count = sizeof(chain_attacks) / sizeof(chain_attacks[0]);

/* Takes back what the device hasn't used, so that an attack on a receive queue is what it finds next. */
static void withdraw(struct virtqueue *queue)
{
    queue->available.index = queue->used.index;
}

int run_chain_attack(struct attacker *attacker, const struct chain_attack *attack)
{
    static const struct {
        struct frame_header header;
        struct hello_body body;
    } hello = { { sizeof(struct hello_body), 1, FRAME_HELLO, 0, 0 }, { { 'k', 'v', 'm', 'p', 'r', 'o', 'f', 0 }, 1, 1, 0 } };
    struct virtqueue *queue = &attacker->console->queues[attacker->queue];
    int receives = attacker->victim == VICTIM_RECEIVE || attacker->victim == VICTIM_CONTROL_RECEIVE;
    int outcome = console_control(attacker->console, attacker->port->number, CONTROL_PORT_OPEN, 1);

    if (attacker->victim == VICTIM_CONTROL_RECEIVE)
        withdraw(queue);
    attack->offer(queue, receives ? DESCRIPTOR_WRITE : 0);
    console_notify(attacker->console, attacker->queue);
    /* Makes the host say something: on the port, or that it has closed it. */
    if (attacker->victim == VICTIM_RECEIVE)
        push(attacker, transmit_queue(attacker->port), &hello, sizeof(hello));
    if (attacker->victim == VICTIM_CONTROL_RECEIVE)
        push_garbage(attacker, transmit_queue(attacker->port));
    return outcome;
}
