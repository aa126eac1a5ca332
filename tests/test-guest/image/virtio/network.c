#include "kernel.h"
#include "memory.h"
#include "network.h"
#include "console.h"
#include "../options.h"

/* Far beyond what any answer takes, on a loaded machine too. */
#define TIMEOUT_MS 10000
#define LINK_UP 1

/* The registers of the first device of this kind; 0: there is none. */
uint64_t find_device(uint32_t id)
{
    for (uint32_t i = 0; i < options.device_count; i++) {
        uint64_t base = options.devices[i];
        if (register_read(base, REGISTER_MAGIC) == MAGIC_VALUE && register_read(base, REGISTER_DEVICE_ID) == id)
            return base;
    }
    return 0;
}

static int negotiate(uint64_t base, uint32_t features)
{
    const uint32_t version_1 = 1u << (FEATURE_VERSION_1 - 32);
    const uint32_t status = STATUS_ACKNOWLEDGE | STATUS_DRIVER | STATUS_FEATURES_OK;

    register_write(base, REGISTER_STATUS, STATUS_ACKNOWLEDGE | STATUS_DRIVER);
    register_write(base, REGISTER_DEVICE_FEATURES_SELECT, 0);
    if ((register_read(base, REGISTER_DEVICE_FEATURES) & features) != features)
        return NO_DEVICE;
    register_write(base, REGISTER_DRIVER_FEATURES_SELECT, 0);
    register_write(base, REGISTER_DRIVER_FEATURES, features);
    register_write(base, REGISTER_DRIVER_FEATURES_SELECT, 1);
    register_write(base, REGISTER_DRIVER_FEATURES, version_1);
    register_write(base, REGISTER_STATUS, status);
    return register_read(base, REGISTER_STATUS) == status ? 0 : NO_DEVICE;
}

/* From any state to DRIVER_OK, with empty queues. */
int simple_start(struct simple_device *device, uint32_t features)
{
    uint64_t base = device->base;

    if (base == 0)
        return NO_DEVICE;
    register_write(base, REGISTER_STATUS, STATUS_RESET);
    int outcome = negotiate(base, features);
    if (outcome != 0)
        return outcome;
    for (uint32_t queue = 0; queue < device->queue_count; queue++) {
        const struct virtqueue *memory = &device->queues[queue];
        queue_clear(&device->queues[queue]);
        register_write(base, REGISTER_QUEUE_SELECT, queue);
        register_write(base, REGISTER_QUEUE_SIZE, QUEUE_SIZE);
        register_write_address(base, REGISTER_QUEUE_TABLE, (uint64_t)memory->table);
        register_write_address(base, REGISTER_QUEUE_AVAILABLE, (uint64_t)&memory->available);
        register_write_address(base, REGISTER_QUEUE_USED, (uint64_t)&memory->used);
        register_write(base, REGISTER_QUEUE_READY, 1);
    }
    register_write(base, REGISTER_STATUS, STATUS_ACKNOWLEDGE | STATUS_DRIVER | STATUS_FEATURES_OK | STATUS_DRIVER_OK);
    return 0;
}

void simple_notify(const struct simple_device *device, uint32_t queue)
{
    register_write(device->base, REGISTER_QUEUE_NOTIFY, queue);
}

/* Waits until the device is done with a chain of this queue. */
int simple_wait(struct simple_device *device, uint32_t queue, uint32_t *head, uint32_t *length)
{
    uint64_t since = rdtsc();

    while (!queue_take(&device->queues[queue], head, length)) {
        __asm__ volatile("pause");
        if (rdtsc() - since > kvmprof_truth.tsc_khz * TIMEOUT_MS)
            return TIMED_OUT;
    }
    return 0;
}

/* Without receive buffers: network_offer_buffers() offers them. */
int network_start(struct network *network)
{
    struct simple_device *device = &network->device;

    device->base = find_device(DEVICE_ID_NETWORK);
    device->queue_count = 2;
    int outcome = simple_start(device, 1u << FEATURE_NETWORK_MAC | 1u << FEATURE_NETWORK_STATUS);
    for (uint32_t i = 0; outcome == 0 && i < MAC_SIZE; i++) {
        uint32_t word = register_read(device->base, REGISTER_CONFIGURATION + i / 4 * 4);
        network->mac[i] = (uint8_t)(word >> i % 4 * 8);
    }
    return outcome;
}

void network_give_back(struct network *network, uint32_t buffer)
{
    struct virtqueue *queue = &network->device.queues[NETWORK_RECEIVE_QUEUE];

    queue_describe(queue, buffer, (uint64_t)network->receive[buffer], FRAME_ROOM, DESCRIPTOR_WRITE);
    queue_offer(queue, (uint16_t)buffer);
    simple_notify(&network->device, NETWORK_RECEIVE_QUEUE);
}

void network_offer_buffers(struct network *network)
{
    for (uint32_t buffer = 0; buffer < QUEUE_SIZE; buffer++)
        network_give_back(network, buffer);
}

int network_is_up(const struct network *network)
{
    uint32_t word = register_read(network->device.base, REGISTER_CONFIGURATION + 4);

    return (word >> 16 & LINK_UP) != 0;
}

/* Sends a frame, and waits until the device has it. */
int network_send(struct network *network, const uint8_t *frame, uint32_t length)
{
    struct virtqueue *queue = &network->device.queues[NETWORK_TRANSMIT_QUEUE];
    uint32_t head, used;

    if (length > FRAME_ROOM - NETWORK_HEADER)
        length = FRAME_ROOM - NETWORK_HEADER;
    memset(network->transmit, 0, NETWORK_HEADER);
    memcpy(network->transmit + NETWORK_HEADER, frame, length);
    queue_describe(queue, 0, (uint64_t)network->transmit, NETWORK_HEADER + length, 0);
    queue_offer(queue, 0);
    simple_notify(&network->device, NETWORK_TRANSMIT_QUEUE);
    return simple_wait(&network->device, NETWORK_TRANSMIT_QUEUE, &head, &used);
}

/* Takes a frame that has come: in which buffer, and its bytes with the header; 0 if none has. */
int network_receive(struct network *network, uint32_t *buffer, uint32_t *length)
{
    if (!queue_take(&network->device.queues[NETWORK_RECEIVE_QUEUE], buffer, length))
        return 0;
    if (*length > FRAME_ROOM)
        *length = FRAME_ROOM;
    return 1;
}

int entropy_start(struct simple_device *device)
{
    device->base = find_device(DEVICE_ID_ENTROPY);
    device->queue_count = 1;
    return simple_start(device, 0);
}

/* Asks for random bytes: how many the device has put into the room for them. */
int entropy_request(struct simple_device *device, void *bytes, uint32_t room, uint32_t *length)
{
    struct virtqueue *queue = &device->queues[ENTROPY_QUEUE];
    uint32_t head;

    queue_describe(queue, 0, (uint64_t)bytes, room, DESCRIPTOR_WRITE);
    queue_offer(queue, 0);
    simple_notify(device, ENTROPY_QUEUE);
    return simple_wait(device, ENTROPY_QUEUE, &head, length);
}
