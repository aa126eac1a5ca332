/*
 * A hostile driver: one attack after the other on a virtio console by one of
 * its ports, and after each of them, does another port still work?
 */
#include "../attacks/attacks.h"
#include "../virtio/results.h"
#include "workloads.h"

#define PROF_ALL 0x5004
#define PCS_GETHZ 0x5084
#define EBUSY 16
/* One may overtake an attack on its way to the device's thread, two don't. */
#define EXCHANGES 2
/* How often the second vCPU looks whether it is wanted. */
#define LOOK_MS 5

struct attack_results kvmprof_attack_results;

static struct console console;
static struct connection good; /* of the port that has to go on */
static struct connection bad;  /* of the attacker's */
static uint32_t connected;     /* whether the good one is */

static int connect_good(void)
{
    struct port *port;
    int outcome = console_find(&console, "kvmprof.0", &port);

    if (outcome == 0)
        outcome = wire_connect(&good, port);
    connected = outcome == 0;
    return outcome;
}

/* Opens pcs. Where the attacker had it open until now, that takes a moment to end. */
static int open_pcs(uint32_t *handle)
{
    struct timeout timeout = start_timeout();
    int outcome, patient;

    do {
        outcome = wire_open(&good, DEVICE_PCS, 0, handle);
        patient = check_timeout(&console, &timeout);
    } while (outcome == EBUSY && patient == 0);
    return outcome;
}

/* What the good port is used for: opens pcs, asks it something and closes it. */
static int exchange(void)
{
    uint32_t handle = 0;
    int outcome = connected ? 0 : connect_good();

    for (uint32_t turn = 0; turn < EXCHANGES && outcome == 0; turn++) {
        outcome = open_pcs(&handle);
        if (outcome == 0)
            outcome = wire_ioctl(&good, handle, PCS_GETHZ, 0, 0);
        if (outcome == 0 && (good.reply.header.length != 8 || good.reply.body[0] == 0))
            outcome = BAD_REPLY;
        if (outcome == 0)
            outcome = wire_close(&good, handle);
    }
    return outcome;
}

/* From whatever state the device is in to one with a good port that works. */
static int start_over(void)
{
    connected = 0;
    int outcome = console_start(&console);
    return outcome != 0 ? outcome : exchange();
}

/* Whether the host has closed the attacker's port; where it has to, that is waited for. */
static uint32_t is_closed(const struct port *port, uint32_t flags)
{
    struct timeout timeout = start_timeout();
    int patient = flags & CLOSES_PORT ? 0 : NOT_TRIED;

    do {
        console_poll(&console);
        if (patient == 0)
            patient = check_timeout(&console, &timeout);
    } while (port->host_open && patient == 0);
    return port->present && !port->host_open;
}

/* What the second vCPU is to do, if anything. */
static void (*volatile wanted_turn)(struct attacker *);
static struct attacker *volatile turning;
static volatile uint32_t is_turning;

/* The second vCPU's part in it. While nothing is wanted of it, it leaves the processor to others. */
static void make_turns(void)
{
    for (;;) {
        void (*turn)(struct attacker *) = wanted_turn;
        is_turning = turn != NULL;
        if (turn != NULL)
            turn(turning);
        else
            idle(kvmprof_truth.tsc_khz * LOOK_MS);
    }
}

/* Uses the good port meanwhile. */
static int while_it_turns(struct attacker *attacker, void (*turn)(struct attacker *))
{
    int outcome;

    if (kvmprof_truth.vcpus < 2)
        return NOT_TRIED;
    turning = attacker;
    wanted_turn = turn;
    while (!is_turning)
        __asm__ volatile("pause");
    outcome = exchange();
    wanted_turn = NULL;
    while (is_turning)
        __asm__ volatile("pause");
    return outcome;
}

/* The attacker, with the port that is its own. */
static int find_hostile(struct attacker *attacker, enum victim victim)
{
    int outcome = console_find(&console, "kvmprof.1", &attacker->port);
    const uint32_t queues[VICTIMS] = { 0, transmit_queue(attacker->port), receive_queue(attacker->port), CONTROL_TRANSMIT_QUEUE, CONTROL_RECEIVE_QUEUE };

    attacker->console = &console;
    attacker->connection = &bad;
    attacker->victim = victim;
    attacker->queue = queues[victim];
    attacker->pushed = 0;
    attacker->meanwhile = while_it_turns;
    return outcome;
}

static struct attack_result *next_result(const char *name, enum victim victim, uint32_t flags)
{
    struct attack_results *results = &kvmprof_attack_results;
    struct attack_result *result = &results->attack[results->attacks++ % ATTACKS_MAX];

    result->name = (uint64_t)name;
    result->victim = victim;
    result->flags = flags;
    result->during = NOT_TRIED;
    result->after = NOT_TRIED;
    return result;
}

/* Whether this one is wanted; the host is told of the others, too. */
static int is_wanted(void)
{
    return options.attack == EVERY_ATTACK || options.attack == kvmprof_attack_results.attacks - 1;
}

/* After an attack: the good port as it is, then after a reset. */
static void judge(struct attack_result *result, const struct port *attackers)
{
    if (console.running) {
        console.gives_up = result->flags & COSTS_DEVICE;
        result->during = exchange();
        console.gives_up = 0;
        result->closed = is_closed(attackers, result->flags);
        result->status = register_read(console.base, REGISTER_STATUS);
    }
    result->after = start_over();
    __atomic_fetch_add(&kvmprof_attack_results.over, 1, __ATOMIC_RELEASE);
}

static void try_attack(struct attack_result *result, int (*run)(struct attacker *), const struct chain_attack *chain)
{
    struct attacker attacker;

    result->answer = find_hostile(&attacker, result->victim);
    if (result->answer == 0)
        result->answer = chain != NULL ? run_chain_attack(&attacker, chain) : run(&attacker);
    judge(result, attacker.port);
}

static void try_all(const struct attack *attacks, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        struct attack_result *result = next_result(attacks[i].name, VICTIM_NONE, attacks[i].flags);
        if (is_wanted())
            try_attack(result, attacks[i].run, NULL);
    }
}

static void try_chains(enum victim victim)
{
    uint32_t flags = victim == VICTIM_CONTROL_TRANSMIT || victim == VICTIM_CONTROL_RECEIVE ? COSTS_DEVICE : 0;

    for (uint32_t i = 0; i < chain_attack_count; i++) {
        struct attack_result *result = next_result(chain_attacks[i].name, victim, chain_attacks[i].flags | flags);
        if (is_wanted())
            try_attack(result, NULL, &chain_attacks[i]);
    }
}

/* Starts the device with a queue of the attacker's in a wrong place, and uses that. */
static void try_queue(const struct queue_attack *attack, enum victim victim)
{
    struct attack_result *result = next_result(attack->name, victim, attack->flags);
    struct attacker attacker;

    if (!is_wanted())
        return;
    find_hostile(&attacker, victim);
    uint32_t queue = attacker.queue;
    connected = 0;
    result->answer = start_with_queue_attack(&console, attack, queue);
    if (result->answer == 0)
        result->answer = find_hostile(&attacker, victim);
    if (result->answer == 0) {
        console_control(&console, attacker.port->number, CONTROL_PORT_OPEN, 1);
        push_garbage(&attacker, transmit_queue(attacker.port));
        console_notify(&console, queue);
    }
    judge(result, attacker.port);
}

static void try_start(const struct start_attack *attack)
{
    struct attack_result *result = next_result(attack->name, VICTIM_NONE, attack->flags);

    if (!is_wanted())
        return;
    result->answer = attack->start(&console);
    console.running = 0;
    judge(result, NULL);
}

/* Goes without a word, with pcs open and a read that waits. */
static void leave(void)
{
    uint32_t handle = 0;
    int outcome = connected ? open_pcs(&handle) : CLOSED;

    if (outcome == 0)
        outcome = wire_ioctl(&good, handle, PROF_ALL, 0, 0);
    if (outcome == 0)
        wire_start_read(&good, handle, 1024);
    console_reset(&console);
}

void hostile_queues(void)
{
    struct attack_results *results = &kvmprof_attack_results;

    if (this_vcpu()->index == 1)
        make_turns();
    if (this_vcpu()->index != 0)
        return;
    console.base = options.console;
    results->failure = start_over();
    if (results->failure == 0) {
        for (enum victim victim = VICTIM_TRANSMIT; victim < VICTIMS; victim++)
            try_chains(victim);
        for (enum victim victim = VICTIM_TRANSMIT; victim <= VICTIM_RECEIVE; victim++) {
            for (uint32_t i = 0; i < queue_attack_count; i++)
                try_queue(&queue_attacks[i], victim);
        }
        for (uint32_t i = 0; i < start_attack_count; i++)
            try_start(&start_attacks[i]);
        try_all(register_attacks, register_attack_count);
        try_all(control_attacks, control_attack_count);
        try_all(frame_attacks, frame_attack_count);
        leave();
    }
    __atomic_store_n(&results->finished, 1, __ATOMIC_RELEASE);
}
