/* Accesses that the transport doesn't have, on a device that runs. */
#include "attacks.h"

#define EVERYTHING 0xffffffff
/* The registers, the configuration and some more. */
#define LOOKED_AT 0x120

static void read_width(uint64_t address, uint32_t width)
{
    uint64_t value;

    switch (width) {
    case 1:
        __asm__ volatile("movb (%1), %b0" : "=r"(value) : "r"(address) : "memory");
        break;
    case 2:
        __asm__ volatile("movw (%1), %w0" : "=r"(value) : "r"(address) : "memory");
        break;
    case 4:
        __asm__ volatile("movl (%1), %k0" : "=r"(value) : "r"(address) : "memory");
        break;
    default:
        __asm__ volatile("movq (%1), %0" : "=r"(value) : "r"(address) : "memory");
        break;
    }
}

static void write_width(uint64_t address, uint32_t width, uint64_t value)
{
    switch (width) {
    case 1:
        __asm__ volatile("movb %b0, (%1)" : : "r"(value), "r"(address) : "memory");
        break;
    case 2:
        __asm__ volatile("movw %w0, (%1)" : : "r"(value), "r"(address) : "memory");
        break;
    case 4:
        __asm__ volatile("movl %k0, (%1)" : : "r"(value), "r"(address) : "memory");
        break;
    default:
        __asm__ volatile("movq %0, (%1)" : : "r"(value), "r"(address) : "memory");
        break;
    }
}

static int read_everywhere(struct attacker *attacker, uint32_t width, uint32_t step)
{
    for (uint32_t offset = 0; offset < LOOKED_AT; offset += step)
        read_width(attacker->console->base + offset, width);
    return 0;
}

static int read_bytes(struct attacker *attacker)
{
    return read_everywhere(attacker, 1, 1);
}

static int read_words(struct attacker *attacker)
{
    return read_everywhere(attacker, 2, 1);
}

static int read_misaligned(struct attacker *attacker)
{
    return read_everywhere(attacker, 4, 1);
}

static int read_quads(struct attacker *attacker)
{
    return read_everywhere(attacker, 8, 3);
}

/* Up to the end of the registers, and over it. */
static int read_far(struct attacker *attacker)
{
    for (uint32_t offset = LOOKED_AT; offset < REGISTERS_END; offset += 52)
        read_width(attacker->console->base + offset, 4);
    for (uint32_t offset = REGISTERS_END - 8; offset < REGISTERS_END; offset++)
        read_width(attacker->console->base + offset, 8);
    return 0;
}

static int write_everywhere(struct attacker *attacker, uint32_t width, uint32_t step)
{
    for (uint32_t offset = 0; offset < LOOKED_AT; offset += step)
        write_width(attacker->console->base + offset, width, random_number());
    return 0;
}

static int write_bytes(struct attacker *attacker)
{
    return write_everywhere(attacker, 1, 1);
}

static int write_words(struct attacker *attacker)
{
    return write_everywhere(attacker, 2, 1);
}

static int write_misaligned(struct attacker *attacker)
{
    for (uint32_t offset = 0; offset < LOOKED_AT; offset++) {
        if (offset % 4 != 0)
            write_width(attacker->console->base + offset, 4, random_number());
    }
    return 0;
}

static int write_quads(struct attacker *attacker)
{
    return write_everywhere(attacker, 8, 4);
}

static int write_all_registers(struct attacker *attacker)
{
    for (uint32_t round = 0; round < 4; round++)
        write_everywhere(attacker, 4, 4);
    return 0;
}

/* Those that can't be written, and those that aren't there. */
static int write_read_only(struct attacker *attacker)
{
    static const uint16_t offsets[] = { 0x000, 0x004, 0x008, 0x00c, 0x010, 0x018, 0x01c, 0x028, 0x02c, 0x034, 0x03c, 0x040, 0x048,
                                        0x04c, 0x054, 0x060, 0x068, 0x0b0, 0x0b4, 0x0b8, 0x0bc, 0x0c4, 0x0f8, 0x0fc };

    for (uint32_t i = 0; i < sizeof(offsets) / sizeof(offsets[0]); i++)
        register_write(attacker->console->base, offsets[i], EVERYTHING);
    return 0;
}

static int write_configuration(struct attacker *attacker)
{
    for (uint32_t width = 1; width <= 8; width <<= 1) {
        for (uint32_t offset = REGISTER_CONFIGURATION; offset < LOOKED_AT; offset++)
            write_width(attacker->console->base + offset, width, random_number());
    }
    write_width(attacker->console->base + REGISTERS_END - 4, 4, EVERYTHING);
    write_width(attacker->console->base + REGISTERS_END - 1, 1, EVERYTHING);
    return 0;
}

static int notify_nobody(struct attacker *attacker)
{
    static const uint32_t queues[] = { QUEUES, 62, 63, 64, 255, 256, 65535, 65536, 0x10000 | 5, 0x7fffffff, EVERYTHING };

    for (uint32_t round = 0; round < 20; round++) {
        for (uint32_t i = 0; i < sizeof(queues) / sizeof(queues[0]); i++)
            console_notify(attacker->console, queues[i]);
    }
    return 0;
}

static int select_nothing(struct attacker *attacker)
{
    static const uint32_t queues[] = { QUEUES, 1000, 65535, 65536, 0x80000000, EVERYTHING };
    int ready = 0;

    for (uint32_t i = 0; i < sizeof(queues) / sizeof(queues[0]); i++) {
        uint64_t base = attacker->console->base;
        register_write(base, REGISTER_QUEUE_SELECT, queues[i]);
        register_write(base, REGISTER_QUEUE_SIZE, EVERYTHING);
        register_write_address(base, REGISTER_QUEUE_TABLE, 1);
        register_write(base, REGISTER_QUEUE_READY, 1);
        ready += i > 0 && register_read(base, REGISTER_QUEUE_READY) != 0;
    }
    return ready;
}

static int acknowledge_interrupts(struct attacker *attacker)
{
    for (uint32_t bit = 0; bit < 32; bit++)
        register_write(attacker->console->base, REGISTER_INTERRUPT_ACKNOWLEDGE, 1u << bit);
    register_write(attacker->console->base, REGISTER_INTERRUPT_ACKNOWLEDGE, EVERYTHING);
    return 0;
}

const struct attack register_attacks[] = {
    { "bytes read", read_bytes, 0 },
    { "words read", read_words, 0 },
    { "misaligned reads", read_misaligned, 0 },
    { "quadwords read", read_quads, 0 },
    { "reads up to the registers' end", read_far, 0 },
    { "bytes written", write_bytes, COSTS_DEVICE },
    { "words written", write_words, COSTS_DEVICE },
    { "misaligned writes", write_misaligned, COSTS_DEVICE },
    { "quadwords written", write_quads, COSTS_DEVICE },
    { "all registers written", write_all_registers, COSTS_DEVICE },
    { "read-only registers written", write_read_only, 0 },
    { "configuration written", write_configuration, 0 },
    { "notifications of queues that aren't there", notify_nobody, 0 },
    { "queues chosen that aren't there", select_nothing, 0 },
    { "interrupts acknowledged that weren't", acknowledge_interrupts, 0 },
};

const uint32_t register_attack_count = sizeof(register_attacks) / sizeof(register_attacks[0]);
