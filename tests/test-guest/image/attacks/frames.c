/* The framed protocol (guest/abi/WIRE.md) used wrongly, through queues in order. */
#include "attacks.h"

#define PROF_ALL 0x5004
#define UNKNOWN_HANDLE 1000
/* One more than a connection may have open, or waiting. */
#define TOO_MANY 257
#define MAX_DATA (4u << 20)

static const struct hello_body hello_body = { { 'k', 'v', 'm', 'p', 'r', 'o', 'f', 0 }, 1, 1, 0 };

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

static int before_hello(struct attacker *attacker)
{
    int outcome = port_open(attacker->port);

    return outcome != 0 ? outcome : send_frame(attacker, (struct frame_header){ 8, 1, FRAME_OPEN, 0, 0 }, "\1\0\0\0\0\0\0", 8);
}

static int hello_twice(struct attacker *attacker)
{
    int outcome = connect(attacker);

    return outcome != 0 ? outcome : send_frame(attacker, (struct frame_header){ sizeof(hello_body), 2, FRAME_HELLO, 0, 0 }, &hello_body, sizeof(hello_body));
}

static int wrong_magic(struct attacker *attacker)
{
    int outcome = port_open(attacker->port);

    return outcome != 0 ? outcome : send_frame(attacker, (struct frame_header){ 16, 1, FRAME_HELLO, 0, 0 }, "kvmpror\0\1\0\1\0\0\0\0", 16);
}

static int unknown_kind(struct attacker *attacker)
{
    int outcome = connect(attacker);

    return outcome != 0 ? outcome : send_bare(attacker, 0, 9, 0, 0);
}

static int a_reply(struct attacker *attacker)
{
    int outcome = connect(attacker);

    return outcome != 0 ? outcome : send_bare(attacker, 0, FRAME_REPLY | FRAME_CLOSE, 0, 0);
}

static int longest_length(struct attacker *attacker)
{
    int outcome = connect(attacker);

    return outcome != 0 ? outcome : send_bare(attacker, 0xffffffff, FRAME_WRITE, 0, 1);
}

static int write_too_long(struct attacker *attacker)
{
    int outcome = connect(attacker);

    return outcome != 0 ? outcome : send_bare(attacker, 4 + MAX_DATA + 1, FRAME_WRITE, 0, 1);
}

static int ioctl_too_long(struct attacker *attacker)
{
    int outcome = connect(attacker);

    return outcome != 0 ? outcome : send_bare(attacker, 0x20000, FRAME_IOCTL, 0, 1);
}

static int body_too_short(struct attacker *attacker)
{
    int outcome = connect(attacker);

    return outcome != 0 ? outcome : send_bare(attacker, 7, FRAME_READ, 0, 1);
}

static int reserved_field(struct attacker *attacker)
{
    int outcome = connect(attacker);

    return outcome != 0 ? outcome : send_bare(attacker, 0, FRAME_CLOSE, 1, 1);
}

static int tag_that_waits(struct attacker *attacker)
{
    static const uint32_t read_body[2] = { 1024, 0 };
    uint32_t handle = 0;
    int outcome = open_pcs(attacker, &handle);

    if (outcome != 0)
        return outcome;
    for (uint32_t turn = 0; turn < 2; turn++) {
        const struct frame_header header = { sizeof(read_body), 7777, FRAME_READ, 0, handle };
        send_frame(attacker, header, read_body, sizeof(read_body));
    }
    return outcome;
}

/* ---- what doesn't, but might hurt ---- */

/* A write of 4 MiB is announced, and little of it comes. */
static int half_a_frame(struct attacker *attacker)
{
    int outcome = connect(attacker);

    return outcome != 0 ? outcome : send_bare(attacker, 4 + MAX_DATA, FRAME_WRITE, 0, 1);
}

static int half_a_header(struct attacker *attacker)
{
    int outcome = connect(attacker);

    push(attacker, transmit_queue(attacker->port), &hello_body, 9);
    return outcome;
}

/* What is left of the connection before must not get into the next. */
static int half_a_frame_and_hello(struct attacker *attacker)
{
    int outcome = half_a_header(attacker);

    if (outcome == 0)
        outcome = port_close(attacker->port);
    return outcome != 0 ? outcome : connect(attacker);
}

static int hello_by_bytes(struct attacker *attacker)
{
    struct {
        struct frame_header header;
        struct hello_body body;
    } hello = { { sizeof(hello_body), 1, FRAME_HELLO, 0, 0 }, hello_body };
    int outcome = port_open(attacker->port);

    for (uint32_t i = 0; i < sizeof(hello) && outcome == 0; i++)
        outcome = port_send(attacker->port, (const uint8_t *)&hello + i, 1);
    attacker->connection->port = attacker->port;
    attacker->connection->tag = hello.header.tag;
    attacker->connection->received = 0;
    return outcome != 0 ? outcome : wire_wait(attacker->connection);
}

static int too_many_handles(struct attacker *attacker)
{
    uint32_t handle;
    int outcome = connect(attacker);

    for (uint32_t turn = 0; turn < TOO_MANY && outcome == 0; turn++)
        outcome = wire_open(attacker->connection, DEVICE_PRF, 255, &handle);
    return outcome;
}

/* Reads of pcs that wait, one after the other; the last one is refused. */
static int too_many_reads(struct attacker *attacker)
{
    uint32_t handle = 0;
    int outcome = open_pcs(attacker, &handle);

    for (uint32_t turn = 0; turn < TOO_MANY && outcome == 0; turn++)
        outcome = wire_start_read(attacker->connection, handle, 0xffffffff);
    if (outcome == 0)
        outcome = wire_wait(attacker->connection);
    port_close(attacker->port);
    return outcome;
}

/* Requests without an end whose replies nobody takes. */
static int replies_unread(struct attacker *attacker)
{
    static struct frame_header requests[64];
    struct virtqueue *queue = &attacker->console->queues[transmit_queue(attacker->port)];
    uint32_t head, length, stalled = 0, sent = 0;
    int outcome;

    attacker->port->filled = 1;
    outcome = port_open(attacker->port);
    if (outcome != 0)
        return outcome;
    send_frame(attacker, (struct frame_header){ sizeof(hello_body), 0, FRAME_HELLO, 0, 0 }, &hello_body, sizeof(hello_body));
    for (uint32_t i = 0; i < 64; i++)
        requests[i] = (struct frame_header){ 0, i, FRAME_CLOSE, 0, UNKNOWN_HANDLE };
    while (sent < 2000 && stalled < 20000) {
        stalled++;
        if (!queue_take(queue, &head, &length))
            continue;
        stalled = 0;
        sent++;
        push(attacker, transmit_queue(attacker->port), requests, sizeof(requests));
    }
    return (int)sent;
}

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

static int reset_with_half_a_frame(struct attacker *attacker)
{
    int outcome = half_a_frame(attacker);

    console_reset(attacker->console);
    return outcome;
}

const struct attack frame_attacks[] = {
    { "garbage for frames", garbage, CLOSES_PORT },
    { "request before hello", before_hello, CLOSES_PORT },
    { "hello twice", hello_twice, CLOSES_PORT },
    { "wrong magic", wrong_magic, CLOSES_PORT },
    { "unknown kind of frame", unknown_kind, CLOSES_PORT },
    { "reply for a request", a_reply, CLOSES_PORT },
    { "frame of 4 GiB - 1", longest_length, CLOSES_PORT },
    { "write longer than max_data", write_too_long, CLOSES_PORT },
    { "ioctl longer than max_ioctl_data", ioctl_too_long, CLOSES_PORT },
    { "read with a short body", body_too_short, CLOSES_PORT },
    { "reserved field set", reserved_field, CLOSES_PORT },
    { "tag of a read that waits", tag_that_waits, CLOSES_PORT },
    { "half a frame", half_a_frame, 0 },
    { "half a header", half_a_header, 0 },
    { "half a header, then another connection", half_a_frame_and_hello, 0 },
    { "hello in single bytes", hello_by_bytes, 0 },
    { "too many handles", too_many_handles, 0 },
    { "too many reads that wait", too_many_reads, 0 },
    { "replies that nobody takes", replies_unread, 0 },
    { "requests without an end", requests_without_an_end, 0 },
    { "queue changed from elsewhere", scribble_from_elsewhere, 0 },
    { "notifications without an end", notifications_without_an_end, 0 },
    { "port closed while reading", close_while_reading, 0 },
    { "buffers withdrawn while reading", scribble_while_reading, 0 },
    { "reset while reading", reset_while_reading, 0 },
    { "reset with half a frame", reset_with_half_a_frame, 0 },
};

const uint32_t frame_attack_count = sizeof(frame_attacks) / sizeof(frame_attacks[0]);
