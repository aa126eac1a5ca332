/* What the workloads with a network tell the host; src/network.rs reads it. */
#ifndef WORKLOADS_NETWORK_H
#define WORKLOADS_NETWORK_H

#include <stdint.h>

#include "../virtio/network.h"

#define RANDOM_ROOM 8192
#define NETWORK_ATTACKS_MAX 256
/* Far beyond what an exchange takes, on a loaded machine too. */
#define EXCHANGE_MS 20000

enum network_victim {
    NETWORK_VICTIM_RECEIVE,
    NETWORK_VICTIM_TRANSMIT,
    NETWORK_VICTIM_ENTROPY,
    NETWORK_VICTIMS,
};

struct network_attack {
    uint64_t name;        /* its address */
    uint32_t victim;      /* enum network_victim */
    uint32_t flags;       /* what it must lead to (attacks/attacks.h) */
    uint32_t status;      /* the device's, after it */
    int32_t answer;       /* NOT_TRIED, or what kept it from being tried */
    int32_t after;        /* a frame there and back, after a reset */
    int32_t random_after; /* random bytes, after a reset */
};

struct network_results {
    int32_t failure; /* what kept the workload from going on */
    uint32_t finished;
    uint32_t up;     /* the link's state */
    uint32_t ups;    /* announcements that were sent */
    uint32_t downs;
    uint32_t frames; /* that were sent back */
    uint32_t errors; /* frames that no device should give */
    uint8_t mac[8];
    uint32_t random_length; /* bytes of the first request and of the second one */
    uint32_t long_random_length;
    uint8_t random[64];
    uint32_t attacks; /* that have begun */
    uint32_t over;
    struct network_attack attack[NETWORK_ATTACKS_MAX];
};

extern struct network_results kvmprof_network_results;

#endif
