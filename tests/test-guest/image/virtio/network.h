/* Drivers of virtio-net with one pair of queues (virtio 1.2, section 5.1), and of virtio-entropy (5.4), by polling. */
#ifndef VIRTIO_NETWORK_H
#define VIRTIO_NETWORK_H

#include <stdint.h>

#include "mmio.h"
#include "queue.h"

#define FRAME_ROOM 1536
#define NETWORK_HEADER 12
#define MAC_SIZE 6

#define NETWORK_RECEIVE_QUEUE 0
#define NETWORK_TRANSMIT_QUEUE 1
#define ENTROPY_QUEUE 0

/* A device: its registers, and its queues, as many as it has. */
struct simple_device {
    uint64_t base;
    struct virtqueue queues[3];
    uint32_t queue_count;
};

struct network {
    struct simple_device device;
    uint8_t mac[MAC_SIZE];
    uint8_t receive[QUEUE_SIZE][FRAME_ROOM];
    uint8_t transmit[FRAME_ROOM];
};

uint64_t find_device(uint32_t id);

int simple_start(struct simple_device *device, uint32_t features);
void simple_notify(const struct simple_device *device, uint32_t queue);
int simple_wait(struct simple_device *device, uint32_t queue, uint32_t *head, uint32_t *length);

int network_start(struct network *network);
void network_offer_buffers(struct network *network);
int network_is_up(const struct network *network);
int network_send(struct network *network, const uint8_t *frame, uint32_t length);
int network_receive(struct network *network, uint32_t *buffer, uint32_t *length);
void network_give_back(struct network *network, uint32_t buffer);

int entropy_start(struct simple_device *device);
int entropy_request(struct simple_device *device, void *bytes, uint32_t room, uint32_t *length);

#endif
