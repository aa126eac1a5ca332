/*
 * The workloads that use the network device and the entropy device: one sends
 * back what comes, the other one attacks both devices. src/network.rs reads
 * what they have found out.
 */
#include "memory.h"
#include "network.h"
#include "../attacks/attacks.h"
#include "workloads.h"

/* Looks at the receive queue for one at the link's state, which costs an exit. */
#define LOOKS_PER_STATE 1000
#define ETHERNET_HEADER 14
#define ANNOUNCEMENT 60
/* A type for experiments (IEEE 802, local experimental Ethertype 1). */
#define TYPE 0x88b5

struct network_results kvmprof_network_results;

static struct network net;
static struct simple_device entropy;
static uint8_t random[RANDOM_ROOM];

/* A broadcast that says who is there, and how often it has been said. */
static int announce(uint32_t number)
{
    uint8_t frame[ANNOUNCEMENT] = { 0xff, 0xff, 0xff, 0xff, 0xff, 0xff };

    memcpy(frame + MAC_SIZE, net.mac, MAC_SIZE);
    frame[12] = TYPE >> 8;
    frame[13] = TYPE & 0xff;
    memcpy(frame + ETHERNET_HEADER, &number, sizeof(number));
    return network_send(&net, frame, sizeof(frame));
}

/* Sends a frame back to whom it has come from. */
static int send_back(uint8_t *frame, uint32_t length)
{
    memcpy(frame, frame + MAC_SIZE, MAC_SIZE);
    memcpy(frame + MAC_SIZE, net.mac, MAC_SIZE);
    return network_send(&net, frame, length);
}

/* The state of the link, and the generation of the configuration that it is in. */
static uint32_t link_state(uint32_t *generation)
{
    uint32_t up;

    do {
        *generation = register_read(net.device.base, REGISTER_CONFIGURATION_GENERATION);
        up = (uint32_t)network_is_up(&net);
    } while (register_read(net.device.base, REGISTER_CONFIGURATION_GENERATION) != *generation);
    return up;
}

static void follow_link(struct network_results *results)
{
    static uint32_t last_generation;
    uint32_t generation;
    uint32_t up = link_state(&generation);
    /* On a busy host the link may have been down for less than the time between two looks. */
    int was_down = up && results->up && generation != last_generation;

    last_generation = generation;
    if (up == results->up && !was_down)
        return;
    if (!up || was_down)
        results->downs++;
    results->up = up;
    if (up)
        results->failure = announce(++results->ups);
}

static void take_frames(struct network_results *results)
{
    uint32_t buffer, length;

    while (results->failure == 0 && network_receive(&net, &buffer, &length)) {
        uint8_t *frame = net.receive[buffer] + NETWORK_HEADER;
        if (length < NETWORK_HEADER + ETHERNET_HEADER || net.receive[buffer][10] != 1) {
            results->errors++;
        } else {
            results->failure = send_back(frame, length - NETWORK_HEADER);
            results->frames++;
        }
        network_give_back(&net, buffer);
    }
}

/* Random bytes: two requests of different sizes. */
static int ask_for_randomness(struct network_results *results)
{
    int outcome = entropy_start(&entropy);

    if (outcome == 0)
        outcome = entropy_request(&entropy, results->random, sizeof(results->random), &results->random_length);
    if (outcome == 0)
        outcome = entropy_request(&entropy, random, sizeof(random), &results->long_random_length);
    return outcome;
}

void network(void)
{
    struct network_results *results = &kvmprof_network_results;

    if (this_vcpu()->index != 0)
        return;
    results->failure = ask_for_randomness(results);
    if (results->failure == 0)
        results->failure = network_start(&net);
    if (results->failure == 0) {
        memcpy(results->mac, net.mac, MAC_SIZE);
        network_offer_buffers(&net);
    }
    for (uint32_t looks = 0; results->failure == 0; looks++) {
        if (looks % LOOKS_PER_STATE == 0)
            follow_link(results);
        take_frames(results);
        __asm__ volatile("pause");
    }
    __atomic_store_n(&results->finished, 1, __ATOMIC_RELEASE);
}

/* Whether the device is in order: a frame goes out, and the one that comes back is the same. */
static int exchange_frames(uint32_t number)
{
    uint64_t since = rdtsc();
    uint32_t buffer, length, answer = ~number;

    int outcome = network_start(&net);
    if (outcome == 0) {
        network_offer_buffers(&net);
        outcome = announce(number);
    }
    while (outcome == 0 && answer != number) {
        __asm__ volatile("pause");
        if (network_receive(&net, &buffer, &length)) {
            memcpy(&answer, net.receive[buffer] + NETWORK_HEADER + ETHERNET_HEADER, sizeof(answer));
            network_give_back(&net, buffer);
        }
        if (rdtsc() - since > kvmprof_truth.tsc_khz * EXCHANGE_MS)
            outcome = TIMED_OUT;
    }
    return outcome;
}

static int exchange_randomness(void)
{
    uint32_t length = 0;
    int outcome = entropy_start(&entropy);

    if (outcome == 0)
        outcome = entropy_request(&entropy, random, 64, &length);
    return outcome == 0 && length != 64 ? BAD_REPLY : outcome;
}

/* A device in order, without buffers, and then the attack. */
static int attack_device(enum network_victim victim, const struct chain_attack *attack, uint32_t number)
{
    struct simple_device *device = victim == NETWORK_VICTIM_ENTROPY ? &entropy : &net.device;
    uint32_t queue = victim == NETWORK_VICTIM_TRANSMIT ? NETWORK_TRANSMIT_QUEUE : 0;
    int outcome = victim == NETWORK_VICTIM_ENTROPY ? entropy_start(&entropy) : network_start(&net);

    if (outcome != 0)
        return outcome;
    attack->offer(&device->queues[queue], queue == NETWORK_TRANSMIT_QUEUE ? 0 : DESCRIPTOR_WRITE);
    simple_notify(device, queue);
    /* What comes back is for the attacked queue. Its own end may be that of both queues, so nothing is waited for. */
    if (victim == NETWORK_VICTIM_RECEIVE) {
        struct virtqueue *transmit = &net.device.queues[NETWORK_TRANSMIT_QUEUE];
        memset(net.transmit, 0, sizeof(net.transmit));
        const uint32_t mark = number | 1u << 31;
        net.transmit[NETWORK_HEADER + MAC_SIZE] = 2;
        memcpy(net.transmit + NETWORK_HEADER + ETHERNET_HEADER, &mark, sizeof(mark));
        queue_describe(transmit, 0, (uint64_t)net.transmit, NETWORK_HEADER + ANNOUNCEMENT, 0);
        queue_offer(transmit, 0);
        simple_notify(device, NETWORK_TRANSMIT_QUEUE);
    }
    return 0;
}

/* Waits, where the attack has to be noticed, for the device to ask for a reset. */
static void look_at_status(struct network_attack *result, uint64_t base)
{
    uint64_t since = rdtsc();
    int patient = (result->flags & NEEDS_NOTICE) != 0;

    do {
        result->status = register_read(base, REGISTER_STATUS);
        if (rdtsc() - since > kvmprof_truth.tsc_khz * EXCHANGE_MS)
            patient = 0;
    } while (patient && !(result->status & STATUS_NEEDS_RESET));
}

static void try_chain(enum network_victim victim, const struct chain_attack *attack, uint32_t number)
{
    struct network_results *results = &kvmprof_network_results;
    struct network_attack *result = &results->attack[number % NETWORK_ATTACKS_MAX];

    results->attacks = number + 1;
    result->name = (uint64_t)attack->name;
    result->victim = victim;
    result->flags = attack->flags;
    if (options.attack != EVERY_ATTACK && options.attack != number) {
        result->answer = NOT_TRIED;
        return;
    }
    result->answer = attack_device(victim, attack, number);
    if (result->answer == 0)
        look_at_status(result, victim == NETWORK_VICTIM_ENTROPY ? entropy.base : net.device.base);
    result->after = exchange_frames(number);
    result->random_after = exchange_randomness();
    __atomic_fetch_add(&results->over, 1, __ATOMIC_RELEASE);
}

void hostile_network(void)
{
    struct network_results *results = &kvmprof_network_results;

    if (this_vcpu()->index != 0)
        return;
    results->failure = exchange_frames(~0u);
    if (results->failure == 0)
        results->failure = exchange_randomness();
    for (uint32_t number = 0; results->failure == 0 && number < NETWORK_VICTIMS * chain_attack_count; number++)
        try_chain((enum network_victim)(number / chain_attack_count), &chain_attacks[number % chain_attack_count], number);
    __atomic_store_n(&results->finished, 1, __ATOMIC_RELEASE);
}
