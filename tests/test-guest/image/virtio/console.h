/*
 * A driver of virtio-console with several ports (virtio 1.2, section 5.3), by
 * polling: no interrupt is needed, and where kernel mode is interpreted a turn
 * of a loop is cheaper than one.
 */
#ifndef VIRTIO_CONSOLE_H
#define VIRTIO_CONSOLE_H

#include <stdint.h>

#include "mmio.h"
#include "queue.h"

/* Ports that the driver looks at; those beyond are left alone. */
#define PORTS 4
#define QUEUES (2 * PORTS + 2)
/* A buffer takes a frame with a buffer of pcs in it. */
#define BUFFER_SIZE 1088
#define CONTROL_BUFFER_SIZE 64
#define NAME_SIZE 16

#define CONTROL_RECEIVE_QUEUE 2
#define CONTROL_TRANSMIT_QUEUE 3

/* Failures; whatever isn't negative is an errno of the host's, or 0. */
enum {
    TIMED_OUT = -1,    /* nothing came in a time that is beyond doubt */
    NEEDS_RESET = -2,  /* nothing came, and nothing will before a reset */
    CLOSED = -3,       /* the host has closed the port */
    BAD_REPLY = -4,    /* a reply that doesn't belong to the request, or is too long */
    NO_DEVICE = -5,    /* there is no virtio console, or none that does what is needed */
    NOT_TRIED = -6,
};

/* Control messages */
enum {
    CONTROL_DEVICE_READY = 0,
    CONTROL_PORT_ADD = 1,
    CONTROL_PORT_REMOVE = 2,
    CONTROL_PORT_READY = 3,
    CONTROL_CONSOLE_PORT = 4,
    CONTROL_RESIZE = 5,
    CONTROL_PORT_OPEN = 6,
    CONTROL_PORT_NAME = 7,
};

struct control_message {
    uint32_t port;
    uint16_t event;
    uint16_t value;
};

struct port {
    struct console *console;
    uint32_t number;
    uint32_t present;
    uint32_t host_open;
    uint32_t filled;         /* its receive queue has buffers */
    uint32_t received;       /* bytes in the buffer that is being read */
    uint32_t position;       /* how far that has been read */
    uint32_t receive_buffer; /* which one that is */
    char name[NAME_SIZE];
};

struct console {
    uint64_t base;
    uint32_t running;  /* DRIVER_OK has been said, and no reset since */
    uint32_t gives_up; /* waits for nothing once the device asks for a reset */
    struct port ports[PORTS];
    struct virtqueue queues[QUEUES];
    uint8_t control_receive[QUEUE_SIZE][CONTROL_BUFFER_SIZE];
    uint8_t control_transmit[CONTROL_BUFFER_SIZE];
    uint8_t receive[PORTS][QUEUE_SIZE][BUFFER_SIZE];
    uint8_t transmit[PORTS][BUFFER_SIZE];
};

/* How long something has been waited for. */
struct timeout {
    uint64_t since;
    uint32_t looks;
};

/* What sets a queue up: console_set_up_queue(), or an attack in its place. */
typedef void queue_set_up(struct console *console, uint32_t queue);

static inline uint32_t receive_queue(const struct port *port)
{
    return port->number == 0 ? 0 : 2 * port->number + 2;
}

static inline uint32_t transmit_queue(const struct port *port)
{
    return receive_queue(port) + 1;
}

void console_reset(struct console *console);
int console_negotiate(struct console *console);
void console_set_up_queue(struct console *console, uint32_t queue);
int console_run(struct console *console);
int console_start(struct console *console);
int console_find(struct console *console, const char *name, struct port **found);
void console_poll(struct console *console);
void console_notify(struct console *console, uint32_t queue);
int console_control(struct console *console, uint32_t port, uint16_t event, uint16_t value);

int port_open(struct port *port);
int port_close(struct port *port);
int port_send(struct port *port, const void *bytes, uint32_t length);
uint32_t port_receive(struct port *port, void *to, uint32_t room);

struct timeout start_timeout(void);
int check_timeout(struct console *console, struct timeout *timeout);

#endif
