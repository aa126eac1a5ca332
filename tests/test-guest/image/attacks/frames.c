/* The framed protocol (guest/abi/WIRE.md) used at the worst moments, through queues in order. */
#include "attacks.h"

#define PROF_ALL 0x5004
#define UNKNOWN_HANDLE 1000

static int connect(struct attacker *attacker)
{
    return wire_connect(attacker->connection, attacker->port);
}

/* A frame as it is, whatever its header says. */
static int send_frame(struct attacker *attacker, struct frame_header header, const void *body, uint32_t length)
{
    static struct frame frame;

    frame.header = header;
    memcpy(frame.body, body, length);
    push(attacker, transmit_queue(attacker->port), &frame, (uint32_t)sizeof(header) + length);
    return 0;
}

static int send_bare(struct attacker *attacker, uint32_t length, uint16_t kind, uint16_t reserved, uint32_t subject)
{
    return send_frame(attacker, (struct frame_header){ length, 1000, kind, reserved, subject }, attack_buffer, 0);
}

static int open_pcs(struct attacker *attacker, uint32_t *handle)
{
    int outcome = connect(attacker);

    return outcome != 0 ? outcome : wire_open(attacker->connection, DEVICE_PCS, 0, handle);
}

/* ---- what breaks the protocol ---- */

static int garbage(struct attacker *attacker)
{
    port_open(attacker->port);
    push_garbage(attacker, transmit_queue(attacker->port));
    return 0;
}

/* ---- what doesn't, but might hurt ---- */

/* Answers that nobody asked for any more are thrown away, and so the requests never end. */
static void turn_of_requests(struct attacker *attacker)
{
    static struct frame_header requests[BUFFER_SIZE / sizeof(struct frame_header)];
    static struct frame answers;
    struct virtqueue *queue = &attacker->console->queues[transmit_queue(attacker->port)];
    uint32_t head, length, count = sizeof(requests) / sizeof(requests[0]);

    while (port_receive(attacker->port, &answers, sizeof(answers)) != 0)
        ;
    for (uint32_t i = 0; i < count; i++)
        requests[i] = (struct frame_header){ 0, i, FRAME_CLOSE, 0, UNKNOWN_HANDLE };
    queue_take(queue, &head, &length);
    if ((uint16_t)(queue->available.index - queue->taken) < QUEUE_SIZE - 1)
        push(attacker, transmit_queue(attacker->port), requests, sizeof(requests));
}

static int requests_without_an_end(struct attacker *attacker)
{
    int outcome = connect(attacker);

    return outcome != 0 ? outcome : attacker->meanwhile(attacker, turn_of_requests);
}

/* Changes what the device is about to read, from another vCPU. */
static void turn_of_scribbling(struct attacker *attacker)
{
    struct virtqueue *queue = &attacker->console->queues[transmit_queue(attacker->port)];
    uint64_t number = random_number();

    queue->table[number % QUEUE_SIZE] = (struct descriptor){
        (uint64_t)attack_buffer + (number >> 8 & 4095), (uint32_t)(number >> 20 & 127), (uint16_t)(number >> 27 & 1), (uint16_t)(number >> 30 & 7),
    };
    queue_offer(queue, (uint16_t)(number >> 33 & 7));
    console_notify(attacker->console, transmit_queue(attacker->port));
}

static int scribble_from_elsewhere(struct attacker *attacker)
{
    int outcome = connect(attacker);

    return outcome != 0 ? outcome : attacker->meanwhile(attacker, turn_of_scribbling);
}

/* Rings without a pause, for what is no frame and for nothing at all. */
static void turn_of_the_bell(struct attacker *attacker)
{
    push(attacker, transmit_queue(attacker->port), attack_buffer, 64);
    console_notify(attacker->console, receive_queue(attacker->port));
}

static int notifications_without_an_end(struct attacker *attacker)
{
    int outcome = connect(attacker);

    return outcome != 0 ? outcome : attacker->meanwhile(attacker, turn_of_the_bell);
}

static int start_to_read(struct attacker *attacker)
{
    uint32_t handle = 0;
    int outcome = open_pcs(attacker, &handle);

    if (outcome == 0)
        outcome = wire_ioctl(attacker->connection, handle, PROF_ALL, 0, 0);
    if (outcome == 0)
        outcome = wire_start_read(attacker->connection, handle, 1024);
    return outcome;
}

static int close_while_reading(struct attacker *attacker)
{
    int outcome = start_to_read(attacker);

    return outcome != 0 ? outcome : port_close(attacker->port);
}

static int reset_while_reading(struct attacker *attacker)
{
    int outcome = start_to_read(attacker);

    console_reset(attacker->console);
    return outcome;
}

/* The receive queue's buffers are taken away from under a read. */
static int scribble_while_reading(struct attacker *attacker)
{
    struct virtqueue *queue = &attacker->console->queues[receive_queue(attacker->port)];
    int outcome = start_to_read(attacker);

    for (uint32_t i = 0; i < QUEUE_SIZE; i++)
        queue_describe(queue, i, 1ull << 40, 0xffffffff, 0xffff);
    return outcome != 0 ? outcome : send_bare(attacker, 0, FRAME_CLOSE, 0, UNKNOWN_HANDLE);
}

const struct attack frame_attacks[] = {
    { "garbage for frames", garbage, CLOSES_PORT },
    { "requests without an end", requests_without_an_end, 0 },
    { "queue changed from elsewhere", scribble_from_elsewhere, 0 },
    { "notifications without an end", notifications_without_an_end, 0 },
    { "port closed while reading", close_while_reading, 0 },
    { "buffers withdrawn while reading", scribble_while_reading, 0 },
    { "reset while reading", reset_while_reading, 0 },
};

const uint32_t frame_attack_count = sizeof(frame_attacks) / sizeof(frame_attacks[0]);
