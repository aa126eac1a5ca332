/*
 * A guest that profiles itself: it speaks the framed protocol on a port of the
 * console, has pcs gather while its processes run, and counts the records. The
 * host lets it go on from one stage to the next, so that it can try things of
 * its own in between.
 */
#include "memory.h"
#include "port.h"
#include "workloads.h"

#define BUF_INCR 0x5001
#define PROF_ALL 0x5004
#define PCS_SETHZ 0x5085
#define PCS_STOP 0x5086
#define PCS_GETSTAT 0x5087

#define UNKNOWN_DEVICE 99
#define UNKNOWN_COMMAND 0x50ff
#define UNKNOWN_HANDLE 0x7fffffff
#define TOO_MANY 1000
#define MAX_HZ 10000

/* pcs: its buffers, and how many of them are read while the processes run. */
#define PCS_BUFFER 1024
#define BUFFERS 20
/* As many as there can be beside the first three. */
#define MORE_BUFFERS 7

#define KIND_USER 2

struct pcs_header {
    uint16_t unused;
    uint16_t padding;
    uint32_t lost;
};

/* PSAMPLE and MSAMPLE, in the native format. */
struct pcs_record {
    uint8_t type;
    uint8_t space;
    uint16_t cpu;
    int32_t pid_or_count;
    uint64_t pc;
};

struct port_results kvmprof_port_results;

static struct console console;
static struct connection connection;

int try(enum step step, int outcome)
{
    kvmprof_port_results.outcomes[step] = outcome;
    return outcome;
}

void reach(enum stage stage)
{
    __atomic_store_n(&kvmprof_port_results.stage, stage, __ATOMIC_RELEASE);
    while (__atomic_load_n(&kvmprof_port_results.allowed, __ATOMIC_ACQUIRE) < stage)
        __asm__ volatile("pause");
}

static void count_record(const struct pcs_record *record)
{
    struct port_results *results = &kvmprof_port_results;
    uint32_t index = this_vcpu()->index, process = 0;
    uint64_t ticks = 1;

    switch (record->type) {
    case 3: case 4: case 5: case 10:
        ticks = (uint64_t)(int64_t)record->pid_or_count;
        break;
    case KIND_USER:
        while (process < PROCESSES && threads[process][index].pid != record->pid_or_count)
            process++;
        results->user[process]++;
        break;
    }
    results->ticks[record->type % KINDS] += ticks;
}

static void count_buffer(const uint8_t *buffer, uint32_t length)
{
    const struct pcs_header *header = (const struct pcs_header *)buffer;
    uint32_t end = length - header->unused;

    kvmprof_port_results.buffers++;
    kvmprof_port_results.lost += header->lost;
    for (uint32_t at = sizeof(*header); at + sizeof(struct pcs_record) <= end; at += sizeof(struct pcs_record))
        count_record((const struct pcs_record *)(buffer + at));
}

void run_processes(void)
{
    static const uint32_t tenths_of_ms[PROCESSES] = { 30, 20, 10, 5 };

    for (uint32_t process = 0; process < PROCESSES; process++) {
        struct thread *thread = &threads[process][this_vcpu()->index];
        switch_to(thread);
        /* What it asks for in between isn't done here. */
        while (run_slice(thread, random_length(kvmprof_truth.tsc_khz * tenths_of_ms[process] / 10)) != CALL_YIELD)
            ;
    }
    switch_to(&idle_threads[this_vcpu()->index]);
}

/* Reads a buffer of pcs while the processes run. Its length is in the reply; 0 is the end of file. */
static int read_buffer(uint32_t handle, int running)
{
    struct timeout timeout = start_timeout();
    int complete = 0;
    int outcome = wire_start_read(&connection, handle, PCS_BUFFER);

    while (outcome == 0 && !complete) {
        if (running)
            run_processes();
        outcome = wire_look(&connection, &complete);
        if (outcome == 0 && !complete)
            outcome = check_timeout(&console, &timeout);
    }
    if (outcome == 0 && connection.reply.header.length != 0) {
        if (connection.reply.header.length != PCS_BUFFER)
            return BAD_REPLY;
        count_buffer(connection.reply.body, connection.reply.header.length);
    }
    return outcome;
}

int say_hello(struct console *console, struct connection *connection)
{
    struct port *port;
    const struct hello_reply *hello = (const struct hello_reply *)connection->reply.body;
    int outcome = console_start(console);

    if (outcome == 0)
        outcome = console_find(console, "kvmprof.0", &port);
    if (outcome == 0)
        outcome = wire_connect(connection, port);
    if (outcome == 0) {
        kvmprof_port_results.vcpus = hello->vcpus;
        kvmprof_port_results.hz = hello->hz;
    }
    return outcome;
}

/* What is refused, whatever has been done before. */
static void try_the_impossible(void)
{
    uint32_t handle;

    try(STEP_UNKNOWN_DEVICE, wire_open(&connection, UNKNOWN_DEVICE, 0, &handle));
    try(STEP_UNKNOWN_MINOR, wire_open(&connection, DEVICE_PCS, 1, &handle));
    try(STEP_STATUS, wire_open(&connection, DEVICE_STATUS, 0, &handle));
    try(STEP_PROCESSES, wire_open(&connection, DEVICE_PROCESSES, 0, &handle));
    try(STEP_READ_NOTHING_OPEN, read_buffer(UNKNOWN_HANDLE, 0));
}

static void try_pcs(uint32_t handle)
{
    uint32_t second;

    try(STEP_OPEN_AGAIN, wire_open(&connection, DEVICE_PCS, 0, &second));
    try(STEP_FASTER, wire_ioctl(&connection, handle, PCS_SETHZ, MAX_HZ, 0));
    try(STEP_UNKNOWN_COMMAND, wire_ioctl(&connection, handle, UNKNOWN_COMMAND, 0, 0));
    try(STEP_TOO_MANY_BUFFERS, wire_ioctl(&connection, handle, BUF_INCR, TOO_MANY, 0));
    try(STEP_MORE_BUFFERS, wire_ioctl(&connection, handle, BUF_INCR, MORE_BUFFERS, 0));
}

/* Has the processes run under pcs, up to the end of file. */
static int gather(uint32_t handle)
{
    int outcome = 0;

    if (try(STEP_PROF_ALL, wire_ioctl(&connection, handle, PROF_ALL, 0, 0)) != 0)
        return -1;
    for (uint32_t buffer = 0; outcome == 0 && buffer < BUFFERS; buffer++)
        outcome = read_buffer(handle, 1);
    if (outcome == 0)
        outcome = try(STEP_STOP, wire_ioctl(&connection, handle, PCS_STOP, 0, 0));
    do {
        connection.reply.header.length = 0;
        if (outcome == 0)
            outcome = read_buffer(handle, 0);
    } while (outcome == 0 && connection.reply.header.length != 0);
    if (try(STEP_READ, outcome) != 0)
        return -1;
    outcome = try(STEP_GETSTAT, wire_ioctl(&connection, handle, PCS_GETSTAT, 0, ACCOUNT_SIZE));
    /* The reply's first 8 bytes are what the ioctl returns. */
    memcpy(kvmprof_port_results.account, connection.reply.body + 8, ACCOUNT_SIZE);
    return outcome;
}

static int profile(void)
{
    uint32_t handle = 0;

    if (try(STEP_HELLO, say_hello(&console, &connection)) != 0)
        return -1;
    try_the_impossible();
    reach(STAGE_CONNECTED);
    if (try(STEP_OPEN, wire_open(&connection, DEVICE_PCS, 0, &handle)) != 0)
        return -1;
    reach(STAGE_OPEN);
    try_pcs(handle);
    if (gather(handle) != 0)
        return -1;
    reach(STAGE_GATHERED);
    try(STEP_CLOSE, wire_close(&connection, handle));
    try(STEP_READ_CLOSED, read_buffer(handle, 0));
    try(STEP_PORT_CLOSE, port_close(connection.port));
    return 0;
}

void begin(struct console *console)
{
    for (uint32_t step = 0; step < STEPS_ROOM; step++)
        try(step, NOT_TRIED);
    for (uint32_t process = 0; process < PROCESSES; process++) {
        struct thread *thread = &threads[process][0];
        switch_to(thread);
        run_slice(thread, 0); /* up to its first yield */
    }
    console->base = options.console;
}

void port(void)
{
    if (this_vcpu()->index != 0)
        return;
    begin(&console);
    reach(STAGE_START);
    reach(profile() == 0 ? STAGE_CLOSED : STAGE_FAILED);
}
