/* What the workloads that use ports tell the host; src/ports.rs reads it. */
#ifndef VIRTIO_RESULTS_H
#define VIRTIO_RESULTS_H

#include <stdint.h>

#include "layout.h"

/* How far the workload "port" is. It waits at each of them until the host lets it go on. */
enum stage {
    STAGE_START,
    STAGE_CONNECTED, /* has said hello; goes on to open pcs */
    STAGE_OPEN,      /* has pcs open */
    STAGE_GATHERED,  /* has read what it wants, stopped the sampling and read the rest */
    STAGE_CLOSED,    /* has closed pcs and the port */
    STAGE_FAILED = 255,
};

/* What it tries. */
enum step {
    STEP_HELLO,
    STEP_UNKNOWN_DEVICE,
    STEP_UNKNOWN_MINOR,
    STEP_STATUS,
    STEP_PROCESSES,
    STEP_READ_NOTHING_OPEN,
    STEP_OPEN,
    STEP_OPEN_AGAIN,
    STEP_FASTER,
    STEP_UNKNOWN_COMMAND,
    STEP_TOO_MANY_BUFFERS,
    STEP_MORE_BUFFERS,
    STEP_PROF_ALL,
    STEP_READ,
    STEP_STOP,
    STEP_GETSTAT,
    STEP_CLOSE,
    STEP_READ_CLOSED,
    STEP_PORT_CLOSE,
    STEPS,
    STEPS_ROOM = 24,
};

#define KINDS 16
#define ACCOUNT_SIZE 88

struct port_results {
    uint32_t stage;
    uint32_t allowed; /* written by the host: the stage that the guest may leave */
    int32_t outcomes[STEPS_ROOM];
    uint32_t vcpus;
    uint32_t hz;
    uint64_t buffers;      /* read of pcs */
    uint64_t lost;         /* samples, by their headers */
    uint64_t ticks[KINDS]; /* by type of record */
    uint64_t user[PROCESSES + 1]; /* USER records by process; the last one stands for any other pid */
    uint8_t account[ACCOUNT_SIZE];
};

#define ATTACKS_MAX 512

/* One for each attack. */
struct attack_result {
    uint64_t name;   /* its address */
    uint32_t victim; /* enum victim in attacks/attacks.h */
    uint32_t flags;  /* what it may lead to */
    uint32_t status; /* the device's, after the attack */
    uint32_t closed; /* the host has closed the attacker's port */
    int32_t answer;  /* what the attack itself got to know */
    int32_t during;  /* exchange on the well-behaved port after it; NOT_TRIED where the attack ended by a reset */
    int32_t after;   /* and after a reset */
    uint32_t reserved;
};

struct attack_results {
    uint32_t attacks; /* how many there are */
    uint32_t over;    /* how many are over */
    int32_t failure;  /* what kept the workload from going on */
    uint32_t finished;
    struct attack_result attack[ATTACKS_MAX];
};

extern struct port_results kvmprof_port_results;
extern struct attack_results kvmprof_attack_results;

#endif
