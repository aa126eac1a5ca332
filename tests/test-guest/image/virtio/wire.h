/* A client of kvmprof's framed protocol (guest/abi/WIRE.md) on a port of the console. */
#ifndef VIRTIO_WIRE_H
#define VIRTIO_WIRE_H

#include <stdint.h>

#include "console.h"

enum {
    FRAME_HELLO = 1,
    FRAME_OPEN = 2,
    FRAME_READ = 3,
    FRAME_WRITE = 4,
    FRAME_IOCTL = 5,
    FRAME_POLL = 6,
    FRAME_CANCEL = 7,
    FRAME_CLOSE = 8,
    FRAME_REPLY = 0x8000,
};

enum {
    DEVICE_PCS = 1,
    DEVICE_PRF = 2,
    DEVICE_STATUS = 3,
    DEVICE_PROCESSES = 4,
    DEVICE_PROFIL = 7,
};

struct frame_header {
    uint32_t length;
    uint32_t tag;
    uint16_t kind;
    uint16_t reserved;
    uint32_t subject;
};

#define BODY_MAX (BUFFER_SIZE - sizeof(struct frame_header))

struct frame {
    struct frame_header header;
    uint8_t body[BODY_MAX];
} __attribute__((aligned(8)));

struct hello_body {
    uint8_t magic[8];
    uint16_t lowest;
    uint16_t highest;
    uint32_t reserved;
};

struct hello_reply {
    uint16_t version;
    uint16_t lowest;
    uint16_t highest;
    uint16_t reserved;
    uint32_t max_data;
    uint32_t max_ioctl_data;
    uint32_t max_outstanding;
    uint32_t max_handles;
    uint32_t vcpus;
    uint32_t hz;
};

struct ioctl_body {
    uint32_t command;
    uint32_t limit;
    int64_t argument;
};

/* A connection: one request at a time waits for its reply. */
struct connection {
    struct port *port;
    uint32_t tag;
    uint32_t received; /* bytes of the reply so far */
    struct frame reply;
};

int wire_connect(struct connection *connection, struct port *port);
int wire_hello(struct connection *connection);
int wire_send(struct connection *connection, uint16_t kind, uint32_t subject, const void *body, uint32_t length);
int wire_look(struct connection *connection, int *complete);
int wire_wait(struct connection *connection);
int wire_call(struct connection *connection, uint16_t kind, uint32_t subject, const void *body, uint32_t length);
int wire_open(struct connection *connection, uint16_t device, uint16_t minor, uint32_t *handle);
int wire_start_read(struct connection *connection, uint32_t handle, uint32_t limit);
int wire_ioctl(struct connection *connection, uint32_t handle, uint32_t command, int64_t argument, uint32_t limit);
int wire_close(struct connection *connection, uint32_t handle);

#endif
