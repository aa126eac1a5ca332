/* The registers of virtio's memory-mapped transport, version 2 (virtio 1.2, section 4.2.2). */
#ifndef VIRTIO_MMIO_H
#define VIRTIO_MMIO_H

#include <stdint.h>

enum {
    REGISTER_MAGIC = 0x000,
    REGISTER_VERSION = 0x004,
    REGISTER_DEVICE_ID = 0x008,
    REGISTER_DEVICE_FEATURES = 0x010,
    REGISTER_DEVICE_FEATURES_SELECT = 0x014,
    REGISTER_DRIVER_FEATURES = 0x020,
    REGISTER_DRIVER_FEATURES_SELECT = 0x024,
    REGISTER_QUEUE_SELECT = 0x030,
    REGISTER_QUEUE_SIZE_MAX = 0x034,
    REGISTER_QUEUE_SIZE = 0x038,
    REGISTER_QUEUE_READY = 0x044,
    REGISTER_QUEUE_NOTIFY = 0x050,
    REGISTER_INTERRUPT_STATUS = 0x060,
    REGISTER_INTERRUPT_ACKNOWLEDGE = 0x064,
    REGISTER_STATUS = 0x070,
    REGISTER_QUEUE_TABLE = 0x080, /* these three: low half, then high half */
    REGISTER_QUEUE_AVAILABLE = 0x090,
    REGISTER_QUEUE_USED = 0x0a0,
    REGISTER_CONFIGURATION_GENERATION = 0x0fc,
    REGISTER_CONFIGURATION = 0x100,
    REGISTERS_END = 0x1000,
};

#define MAGIC_VALUE 0x74726976 /* "virt" */
#define DEVICE_ID_NETWORK 1
#define DEVICE_ID_CONSOLE 3
#define DEVICE_ID_ENTROPY 4

/* Status */
enum {
    STATUS_RESET = 0,
    STATUS_ACKNOWLEDGE = 1,
    STATUS_DRIVER = 2,
    STATUS_DRIVER_OK = 4,
    STATUS_FEATURES_OK = 8,
    STATUS_NEEDS_RESET = 64,
    STATUS_FAILED = 128,
};

/* Features, the number of the bit. */
enum {
    FEATURE_CONSOLE_MULTIPORT = 1,
    FEATURE_NETWORK_MAC = 5,
    FEATURE_NETWORK_STATUS = 16,
    FEATURE_VERSION_1 = 32,
};

static inline uint32_t register_read(uint64_t base, uint32_t offset)
{
    uint32_t value;
    __asm__ volatile("movl (%1), %0" : "=r"(value) : "r"(base + offset) : "memory");
    return value;
}

static inline void register_write(uint64_t base, uint32_t offset, uint32_t value)
{
    __asm__ volatile("movl %0, (%1)" : : "r"(value), "r"(base + offset) : "memory");
}

static inline void register_write_address(uint64_t base, uint32_t offset, uint64_t address)
{
    register_write(base, offset, (uint32_t)address);
    register_write(base, offset + 4, (uint32_t)(address >> 32));
}

#endif
