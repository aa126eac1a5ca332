/*
 * What a hostile driver can do to a virtio console and to who serves its ports.
 * Each attack starts with a device in order and two ports: one of them is the
 * attacker's, and the other one has to go on working.
 */
#ifndef ATTACKS_H
#define ATTACKS_H

#include "kernel.h"
#include "memory.h"
#include "../options.h"
#include "../virtio/console.h"
#include "../virtio/wire.h"

/* Which queue an attack on chains is tried on. */
enum victim {
    VICTIM_NONE,
    VICTIM_TRANSMIT,
    VICTIM_RECEIVE,
    VICTIM_CONTROL_TRANSMIT,
    VICTIM_CONTROL_RECEIVE,
    VICTIMS,
};

/* What an attack may lead to, and what it must. */
enum {
    COSTS_DEVICE = 1, /* the device may ask for a reset: the attack is on what all ports have in common */
    CLOSES_PORT = 2,  /* the host has to close the attacker's port */
    NEEDS_NOTICE = 4, /* that, or the device has to ask for a reset */
};

struct attacker {
    struct console *console;
    struct port *port;
    struct connection *connection; /* not yet connected */
    enum victim victim;
    uint32_t queue; /* its number */
    uint32_t pushed;
    /* Has another vCPU make turns of an attack, again and again, while the well-behaved port is used. */
    int (*meanwhile)(struct attacker *attacker, void (*turn)(struct attacker *));
};

/* An attack on a device that runs. Returns what it got to know, for the record. */
struct attack {
    const char *name;
    int (*run)(struct attacker *attacker);
    uint32_t flags;
};

/* An attack by a chain of descriptors, for each kind of queue; `direction` is the flag that its descriptors should have. */
struct chain_attack {
    const char *name;
    void (*offer)(struct virtqueue *queue, uint16_t direction);
    uint32_t flags;
};

/* An attack while the device starts. */
struct start_attack {
    const char *name;
    int (*start)(struct console *console);
    uint32_t flags;
};

/* An attack by where a queue is put, and of what size. */
enum place { PROPER, UNSET, NOWHERE, HOLE, REGISTERS, MISALIGNED, WRAPPING, STRADDLING, ON_TABLE };

struct queue_attack {
    const char *name;
    uint32_t size;
    enum place table;
    enum place available;
    enum place used;
    uint32_t ready;
    uint32_t flags;
};

extern const struct chain_attack chain_attacks[];
extern const uint32_t chain_attack_count;
extern const struct queue_attack queue_attacks[];
extern const uint32_t queue_attack_count;
extern const struct start_attack start_attacks[];
extern const uint32_t start_attack_count;
extern const struct attack register_attacks[];
extern const uint32_t register_attack_count;
extern const struct attack control_attacks[];
extern const uint32_t control_attack_count;
extern const struct attack frame_attacks[];
extern const uint32_t frame_attack_count;

int run_chain_attack(struct attacker *attacker, const struct chain_attack *attack);
int start_with_queue_attack(struct console *console, const struct queue_attack *attack, uint32_t victim);

/* attacks.c: what they have in common. */
extern uint8_t attack_buffer[8192];
uint64_t memory_end(void);
void push(struct attacker *attacker, uint32_t queue, const void *bytes, uint32_t length);
void push_garbage(struct attacker *attacker, uint32_t queue);

#endif
