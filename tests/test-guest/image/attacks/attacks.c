#include "attacks.h"

/* Linux's boot parameters (Documentation/arch/x86/zero-page.rst). */
#define E820_ENTRIES 0x1e8
#define E820_TABLE 0x2d0
#define E820_RAM 1

struct e820_entry {
    uint64_t address;
    uint64_t size;
    uint32_t type;
} __attribute__((packed));

uint8_t attack_buffer[8192] __attribute__((aligned(4096)));

/* Where the memory below the devices ends. */
uint64_t memory_end(void)
{
    const struct e820_entry *entries = (const struct e820_entry *)(boot_parameters + E820_TABLE);
    uint64_t end = 0;

    for (uint32_t i = 0; i < boot_parameters[E820_ENTRIES]; i++) {
        uint64_t entry_end = entries[i].address + entries[i].size;
        if (entries[i].type == E820_RAM && entry_end > end && entry_end <= DEVICES)
            end = entry_end;
    }
    return end;
}

/* Transmits without waiting for the device, which may not want it any more. At most 7 times, until a reset. */
void push(struct attacker *attacker, uint32_t queue, const void *bytes, uint32_t length)
{
    struct virtqueue *memory = &attacker->console->queues[queue];
    uint16_t descriptor = (uint16_t)(1 + attacker->pushed++ % (QUEUE_SIZE - 1));

    queue_describe(memory, descriptor, (uint64_t)bytes, length, 0);
    queue_offer(memory, descriptor);
    console_notify(attacker->console, queue);
}

/* What is no frame, and no control message. */
void push_garbage(struct attacker *attacker, uint32_t queue)
{
    static uint64_t garbage[8];

    for (uint32_t i = 0; i < 8; i++)
        garbage[i] = random_number();
    push(attacker, queue, garbage, sizeof(garbage));
}
