/* A split virtqueue (virtio 1.2, section 2.7), seen from the driver. */
#ifndef VIRTIO_QUEUE_H
#define VIRTIO_QUEUE_H

#include <stdint.h>

/* Small, so that the attacks get around it quickly. */
#define QUEUE_SIZE 8

enum {
    DESCRIPTOR_NEXT = 1,
    DESCRIPTOR_WRITE = 2, /* for the device to write */
    DESCRIPTOR_INDIRECT = 4,
};

struct descriptor {
    uint64_t address;
    uint32_t length;
    uint16_t flags;
    uint16_t next;
};

struct available_ring {
    uint16_t flags;
    uint16_t index;
    uint16_t heads[QUEUE_SIZE];
    uint16_t used_event;
};

struct used_ring {
    uint16_t flags;
    uint16_t index;
    struct {
        uint32_t head;
        uint32_t length;
    } elements[QUEUE_SIZE];
    uint16_t available_event;
};

struct virtqueue {
    struct descriptor table[QUEUE_SIZE] __attribute__((aligned(16)));
    struct available_ring available __attribute__((aligned(4)));
    struct used_ring used __attribute__((aligned(4)));
    uint16_t taken; /* elements of the used ring that the driver has had */
};

void queue_clear(struct virtqueue *queue);
void queue_describe(struct virtqueue *queue, uint32_t index, uint64_t address, uint32_t length, uint32_t flags);
void queue_offer(struct virtqueue *queue, uint16_t head);
int queue_take(struct virtqueue *queue, uint32_t *head, uint32_t *length);

#endif
