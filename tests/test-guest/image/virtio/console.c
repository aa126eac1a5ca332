/* The device: start, reset, control messages. */
#include "console.h"
#include "kernel.h"
#include "memory.h"
#include "../text.h"

/* Far beyond what any answer takes, on a loaded machine too. */
#define TIMEOUT_MS 10000
/* The device's status is worth an exit once in so many looks. */
#define LOOKS_PER_STATUS 2048

struct timeout start_timeout(void)
{
    return (struct timeout){ rdtsc(), 0 };
}

/* To be called between two looks: 0, or why there is no point in looking on. */
int check_timeout(struct console *console, struct timeout *timeout)
{
    __asm__ volatile("pause");
    if (++timeout->looks % LOOKS_PER_STATUS != 0)
        return 0;
    if (console->gives_up && register_read(console->base, REGISTER_STATUS) & (STATUS_NEEDS_RESET | STATUS_FAILED))
        return NEEDS_RESET;
    return rdtsc() - timeout->since > kvmprof_truth.tsc_khz * TIMEOUT_MS ? TIMED_OUT : 0;
}

void console_reset(struct console *console)
{
    struct timeout timeout = start_timeout();

    register_write(console->base, REGISTER_STATUS, STATUS_RESET);
    /* The device has let go of the queues once it shows 0. */
    while (register_read(console->base, REGISTER_STATUS) != STATUS_RESET) {
        if (check_timeout(console, &timeout) == TIMED_OUT)
            break;
    }
    console->running = 0;
    for (uint32_t queue = 0; queue < QUEUES; queue++)
        queue_clear(&console->queues[queue]);
    memset(console->ports, 0, sizeof(console->ports));
    for (uint32_t number = 0; number < PORTS; number++) {
        console->ports[number].console = console;
        console->ports[number].number = number;
    }
}

static uint32_t device_features(struct console *console, uint32_t half)
{
    register_write(console->base, REGISTER_DEVICE_FEATURES_SELECT, half);
    return register_read(console->base, REGISTER_DEVICE_FEATURES);
}

static void driver_features(struct console *console, uint32_t half, uint32_t features)
{
    register_write(console->base, REGISTER_DRIVER_FEATURES_SELECT, half);
    register_write(console->base, REGISTER_DRIVER_FEATURES, features);
}

/* Up to FEATURES_OK (virtio 1.2, section 3.1.1). */
int console_negotiate(struct console *console)
{
    const uint32_t multiport = 1u << FEATURE_CONSOLE_MULTIPORT;
    const uint32_t version_1 = 1u << (FEATURE_VERSION_1 - 32);
    uint32_t status = STATUS_ACKNOWLEDGE | STATUS_DRIVER;

    if (register_read(console->base, REGISTER_MAGIC) != MAGIC_VALUE
        || register_read(console->base, REGISTER_VERSION) != 2
        || register_read(console->base, REGISTER_DEVICE_ID) != DEVICE_ID_CONSOLE)
        return NO_DEVICE;
    register_write(console->base, REGISTER_STATUS, STATUS_ACKNOWLEDGE);
    register_write(console->base, REGISTER_STATUS, status);
    if (!(device_features(console, 0) & multiport) || !(device_features(console, 1) & version_1))
        return NO_DEVICE;
    driver_features(console, 0, multiport);
    driver_features(console, 1, version_1);
    status |= STATUS_FEATURES_OK;
    register_write(console->base, REGISTER_STATUS, status);
    return register_read(console->base, REGISTER_STATUS) == status ? 0 : NO_DEVICE;
}

void console_set_up_queue(struct console *console, uint32_t queue)
{
    const struct virtqueue *memory = &console->queues[queue];
    uint64_t base = console->base;

    register_write(base, REGISTER_QUEUE_SELECT, queue);
    if (register_read(base, REGISTER_QUEUE_SIZE_MAX) < QUEUE_SIZE)
        return;
    register_write(base, REGISTER_QUEUE_SIZE, QUEUE_SIZE);
    register_write_address(base, REGISTER_QUEUE_TABLE, (uint64_t)memory->table);
    register_write_address(base, REGISTER_QUEUE_AVAILABLE, (uint64_t)&memory->available);
    register_write_address(base, REGISTER_QUEUE_USED, (uint64_t)&memory->used);
    register_write(base, REGISTER_QUEUE_READY, 1);
}

void console_notify(struct console *console, uint32_t queue)
{
    register_write(console->base, REGISTER_QUEUE_NOTIFY, queue);
}

/* From FEATURES_OK and queues to ports. */
int console_run(struct console *console)
{
    struct virtqueue *queue = &console->queues[CONTROL_RECEIVE_QUEUE];

    register_write(console->base, REGISTER_STATUS,
                   STATUS_ACKNOWLEDGE | STATUS_DRIVER | STATUS_FEATURES_OK | STATUS_DRIVER_OK);
    console->running = 1;
    for (uint16_t buffer = 0; buffer < QUEUE_SIZE; buffer++) {
        queue_describe(queue, buffer, (uint64_t)console->control_receive[buffer], CONTROL_BUFFER_SIZE, DESCRIPTOR_WRITE);
        queue_offer(queue, buffer);
    }
    console_notify(console, CONTROL_RECEIVE_QUEUE);
    return console_control(console, 0, CONTROL_DEVICE_READY, 1);
}

/* All of it, from whatever state the device is in. */
int console_start(struct console *console)
{
    if (console->base == 0)
        return NO_DEVICE;
    console_reset(console);
    int outcome = console_negotiate(console);
    if (outcome != 0)
        return outcome;
    for (uint32_t queue = 0; queue < QUEUES; queue++)
        console_set_up_queue(console, queue);
    return console_run(console);
}

static void take_control_message(struct console *console, const uint8_t *bytes, uint32_t length)
{
    const struct control_message *message = (const struct control_message *)bytes;

    if (length < sizeof(*message) || length > CONTROL_BUFFER_SIZE || message->port >= PORTS)
        return;
    struct port *port = &console->ports[message->port];
    switch (message->event) {
    case CONTROL_PORT_ADD:
        port->present = 1;
        console_control(console, port->number, CONTROL_PORT_READY, 1);
        break;
    case CONTROL_PORT_REMOVE:
        port->present = 0;
        break;
    case CONTROL_PORT_OPEN:
        port->host_open = message->value;
        break;
    case CONTROL_PORT_NAME:
        length -= (uint32_t)sizeof(*message);
        if (length >= NAME_SIZE)
            length = NAME_SIZE - 1;
        memcpy(port->name, bytes + sizeof(*message), length);
        port->name[length] = 0;
        break;
    }
}

/* Takes what the device has to say on the control queue. */
void console_poll(struct console *console)
{
    struct virtqueue *queue = &console->queues[CONTROL_RECEIVE_QUEUE];
    uint32_t buffer, length;

    while (console->running && queue_take(queue, &buffer, &length)) {
        take_control_message(console, console->control_receive[buffer], length);
        queue_offer(queue, (uint16_t)buffer);
        console_notify(console, CONTROL_RECEIVE_QUEUE);
    }
}

/* Has a queue transmit something, and waits until the device is done with it. */
static int transmit(struct console *console, uint32_t number, const void *bytes, uint32_t length)
{
    struct virtqueue *queue = &console->queues[number];
    struct timeout timeout = start_timeout();
    uint32_t head, used;
    int outcome = 0;

    queue_describe(queue, 0, (uint64_t)bytes, length, 0);
    queue_offer(queue, 0);
    console_notify(console, number);
    while (outcome == 0 && !queue_take(queue, &head, &used))
        outcome = check_timeout(console, &timeout);
    return outcome;
}

int console_control(struct console *console, uint32_t port, uint16_t event, uint16_t value)
{
    struct control_message message = { port, event, value };

    memcpy(console->control_transmit, &message, sizeof(message));
    return transmit(console, CONTROL_TRANSMIT_QUEUE, console->control_transmit, sizeof(message));
}

/* Waits until the device has told of a port with this name. */
int console_find(struct console *console, const char *name, struct port **found)
{
    struct timeout timeout = start_timeout();
    int outcome = 0;

    for (; outcome == 0; outcome = check_timeout(console, &timeout)) {
        console_poll(console);
        for (uint32_t number = 0; number < PORTS; number++) {
            *found = &console->ports[number];
            if ((*found)->present && equal((*found)->name, name))
                return 0;
        }
    }
    return outcome;
}

static void offer_receive_buffer(struct port *port, uint32_t buffer)
{
    struct console *console = port->console;
    struct virtqueue *queue = &console->queues[receive_queue(port)];

    queue_describe(queue, buffer, (uint64_t)console->receive[port->number][buffer], BUFFER_SIZE, DESCRIPTOR_WRITE);
    queue_offer(queue, (uint16_t)buffer);
}

/* Tells the host that somebody is there, with room for what it sends, and waits until it is there too. */
int port_open(struct port *port)
{
    struct timeout timeout = start_timeout();
    int outcome;

    if (!port->filled) {
        for (uint32_t buffer = 0; buffer < QUEUE_SIZE; buffer++)
            offer_receive_buffer(port, buffer);
        port->filled = 1;
        console_notify(port->console, receive_queue(port));
    }
    outcome = console_control(port->console, port->number, CONTROL_PORT_OPEN, 1);
    for (; outcome == 0 && !port->host_open; outcome = check_timeout(port->console, &timeout))
        console_poll(port->console);
    return outcome;
}

int port_close(struct port *port)
{
    return console_control(port->console, port->number, CONTROL_PORT_OPEN, 0);
}

/* Sends at most BUFFER_SIZE bytes. */
int port_send(struct port *port, const void *bytes, uint32_t length)
{
    uint8_t *buffer = port->console->transmit[port->number];

    if (length > BUFFER_SIZE)
        length = BUFFER_SIZE;
    memcpy(buffer, bytes, length);
    return transmit(port->console, transmit_queue(port), buffer, length);
}

/* Gives what has come, as far as there is room for it; waits for nothing. */
uint32_t port_receive(struct port *port, void *to, uint32_t room)
{
    struct console *console = port->console;
    uint32_t done = 0;

    while (done < room) {
        if (port->position == port->received) {
            if (!queue_take(&console->queues[receive_queue(port)], &port->receive_buffer, &port->received))
                break;
            port->position = 0;
            if (port->received > BUFFER_SIZE)
                port->received = BUFFER_SIZE;
        }
        uint32_t part = port->received - port->position;
        if (part > room - done)
            part = room - done;
        memcpy((uint8_t *)to + done, console->receive[port->number][port->receive_buffer] + port->position, part);
        port->position += part;
        done += part;
        if (port->position == port->received) {
            offer_receive_buffer(port, port->receive_buffer);
            console_notify(console, receive_queue(port));
        }
    }
    return done;
}
