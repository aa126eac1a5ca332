/* A driver of virtio-vsock (virtio 1.2, section 5.10), by polling. */
#ifndef VIRTIO_VSOCK_H
#define VIRTIO_VSOCK_H

#include <stdint.h>

#include "network.h"

#define DEVICE_ID_VSOCK 19
#define VSOCK_RECEIVE_QUEUE 0
#define VSOCK_TRANSMIT_QUEUE 1
#define VSOCK_QUEUES 3
#define VSOCK_ROOM 4096
#define VSOCK_HOST 2
#define VSOCK_STREAM 1

enum {
    VSOCK_REQUEST = 1,
    VSOCK_RESPONSE,
    VSOCK_RESET,
    VSOCK_SHUTDOWN,
    VSOCK_DATA,
    VSOCK_CREDIT_UPDATE,
    VSOCK_CREDIT_REQUEST,
};

struct vsock_header {
    uint64_t source_cid;
    uint64_t destination_cid;
    uint32_t source_port;
    uint32_t destination_port;
    uint32_t length;
    uint16_t type;
    uint16_t operation;
    uint32_t flags;
    uint32_t room;
    uint32_t forwarded;
} __attribute__((packed));

struct vsock_packet {
    struct vsock_header header;
    uint8_t data[VSOCK_ROOM - sizeof(struct vsock_header)];
} __attribute__((packed));

struct vsock {
    struct simple_device device;
    uint64_t cid;
    struct vsock_packet receive[QUEUE_SIZE];
    struct vsock_packet transmit;
};

int vsock_start(struct vsock *vsock);
void vsock_give_back(struct vsock *vsock, uint32_t buffer);
int vsock_receive(struct vsock *vsock, uint32_t *buffer);
int vsock_send(struct vsock *vsock, uint32_t length);

#endif
