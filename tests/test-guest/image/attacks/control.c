/* Control messages, short, long, wrong and many, through a control queue in order. */
#include "attacks.h"

#define NO_SUCH_PORT 77

static void push_control(struct attacker *attacker, const void *message, uint32_t length)
{
    push(attacker, CONTROL_TRANSMIT_QUEUE, message, length);
}

static int too_short(struct attacker *attacker)
{
    static const struct control_message message = { 0, CONTROL_PORT_OPEN, 1 };

    for (uint32_t length = 1; length < sizeof(message); length++)
        push_control(attacker, &message, length);
    return 0;
}

static int too_long(struct attacker *attacker)
{
    struct control_message *message = (struct control_message *)attack_buffer;

    *message = (struct control_message){ attacker->port->number, CONTROL_PORT_READY, 1 };
    push_control(attacker, message, sizeof(attack_buffer));
    push_control(attacker, message, 0x40000);
    return 0;
}

/* A message to a port that isn't there, of every kind. */
static int no_such_port(struct attacker *attacker)
{
    static const uint32_t ports[] = { PORTS + 1, NO_SUCH_PORT, 255, 65536, 0x7fffffff, 0x80000000, 0xffffffff };
    int outcome = 0;

    for (uint32_t i = 0; i < sizeof(ports) / sizeof(ports[0]); i++) {
        for (uint16_t event = CONTROL_PORT_ADD; event <= CONTROL_PORT_NAME && outcome == 0; event++) {
            outcome = console_control(attacker->console, ports[i], event, 1);
            console_poll(attacker->console);
        }
    }
    return outcome;
}

/* What only the device says, and what nobody does. */
static int unknown_events(struct attacker *attacker)
{
    static const uint16_t events[] = { CONTROL_PORT_ADD, CONTROL_PORT_REMOVE, CONTROL_CONSOLE_PORT, CONTROL_RESIZE, CONTROL_PORT_NAME, 8, 9, 0x100, 0x7fff, 0x8000, 0xffff };
    int outcome = 0;

    for (uint32_t i = 0; i < sizeof(events) / sizeof(events[0]) && outcome == 0; i++) {
        outcome = console_control(attacker->console, attacker->port->number, events[i], 0xffff);
        console_poll(attacker->console);
    }
    return outcome;
}

static int strange_values(struct attacker *attacker)
{
    static const uint16_t values[] = { 0, 2, 0xffff, 1, 1, 0, 0 };
    int outcome = 0;

    for (uint32_t i = 0; i < sizeof(values) / sizeof(values[0]) && outcome == 0; i++) {
        outcome = console_control(attacker->console, attacker->port->number, CONTROL_PORT_READY, values[i]);
        if (outcome == 0)
            outcome = console_control(attacker->console, attacker->port->number, CONTROL_PORT_OPEN, values[i]);
        console_poll(attacker->console);
    }
    return outcome;
}

static int ready_again(struct attacker *attacker)
{
    int outcome = 0;

    for (uint32_t turn = 0; turn < 20 && outcome == 0; turn++) {
        outcome = console_control(attacker->console, 0, CONTROL_DEVICE_READY, 1);
        console_poll(attacker->console);
    }
    return outcome;
}

static int not_ready(struct attacker *attacker)
{
    return console_control(attacker->console, 0xffffffff, CONTROL_DEVICE_READY, 0);
}

/* One message in a byte for each descriptor. */
static int in_pieces(struct attacker *attacker)
{
    static struct control_message message;
    struct virtqueue *queue = &attacker->console->queues[CONTROL_TRANSMIT_QUEUE];

    message = (struct control_message){ attacker->port->number, CONTROL_PORT_OPEN, 1 };
    for (uint32_t i = 0; i < sizeof(message); i++) {
        queue_describe(queue, i, (uint64_t)&message + i, 1, i + 1 < sizeof(message) ? DESCRIPTOR_NEXT : 0);
        queue->table[i].next = (uint16_t)(i + 1);
    }
    queue_offer(queue, 0);
    console_notify(attacker->console, CONTROL_TRANSMIT_QUEUE);
    return 0;
}

/* More than the receive queue takes answers to, which nobody fetches. */
static int flood(struct attacker *attacker)
{
    int outcome = 0;

    for (uint32_t turn = 0; turn < 300 && outcome == 0; turn++)
        outcome = console_control(attacker->console, attacker->port->number, CONTROL_PORT_READY, 1);
    for (uint32_t turn = 0; turn < 300 && outcome == 0; turn++)
        outcome = console_control(attacker->console, attacker->port->number, CONTROL_PORT_OPEN, turn % 2);
    return outcome;
}

static int garbage(struct attacker *attacker)
{
    for (uint32_t turn = 0; turn < QUEUE_SIZE - 1; turn++)
        push_garbage(attacker, CONTROL_TRANSMIT_QUEUE);
    return 0;
}

const struct attack control_attacks[] = {
    { "control messages too short", too_short, 0 },
    { "control messages too long", too_long, 0 },
    { "control messages to ports that aren't there", no_such_port, 0 },
    { "control messages of unknown events", unknown_events, 0 },
    { "control messages with strange values", strange_values, 0 },
    { "DEVICE_READY again and again", ready_again, 0 },
    { "DEVICE_READY taken back", not_ready, COSTS_DEVICE },
    { "control message in pieces", in_pieces, 0 },
    { "flood of control messages", flood, 0 },
    { "garbage for control messages", garbage, 0 },
};

const uint32_t control_attack_count = sizeof(control_attacks) / sizeof(control_attacks[0]);
