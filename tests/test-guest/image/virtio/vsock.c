#include "kernel.h"
#include "memory.h"
#include "vsock.h"

/* From any state to DRIVER_OK, with all buffers offered. */
int vsock_start(struct vsock *vsock)
{
    struct simple_device *device = &vsock->device;

    device->base = find_device(DEVICE_ID_VSOCK);
    device->queue_count = VSOCK_QUEUES;
    int outcome = simple_start(device, 0);
    if (outcome != 0)
        return outcome;
    vsock->cid = register_read(device->base, REGISTER_CONFIGURATION);
    for (uint32_t buffer = 0; buffer < QUEUE_SIZE; buffer++)
        vsock_give_back(vsock, buffer);
    return 0;
}

void vsock_give_back(struct vsock *vsock, uint32_t buffer)
{
    struct virtqueue *queue = &vsock->device.queues[VSOCK_RECEIVE_QUEUE];

    queue_describe(queue, buffer, (uint64_t)&vsock->receive[buffer], VSOCK_ROOM, DESCRIPTOR_WRITE);
    queue_offer(queue, (uint16_t)buffer);
    simple_notify(&vsock->device, VSOCK_RECEIVE_QUEUE);
}

/* Takes a packet that has come: in which buffer; 0 if none has. */
int vsock_receive(struct vsock *vsock, uint32_t *buffer)
{
    uint32_t length;

    return queue_take(&vsock->device.queues[VSOCK_RECEIVE_QUEUE], buffer, &length);
}

/* Sends what is in the buffer for that, with so many bytes after the header, and waits until the device has it. */
int vsock_send(struct vsock *vsock, uint32_t length)
{
    struct virtqueue *queue = &vsock->device.queues[VSOCK_TRANSMIT_QUEUE];
    struct vsock_header *header = &vsock->transmit.header;
    uint32_t head, used;

    header->source_cid = vsock->cid;
    header->destination_cid = VSOCK_HOST;
    header->type = VSOCK_STREAM;
    header->length = length;
    queue_describe(queue, 0, (uint64_t)&vsock->transmit, (uint32_t)sizeof(*header) + length, 0);
    queue_offer(queue, 0);
    simple_notify(&vsock->device, VSOCK_TRANSMIT_QUEUE);
    return simple_wait(&vsock->device, VSOCK_TRANSMIT_QUEUE, &head, &used);
}
