/*
 * Two processes that are profiled in their own memory: the first one calls
 * profil, the second one pcsample. The kernel makes the calls for them, by the
 * framed protocol on a port (guest/abi/PROFIL.md).
 */
#include "memory.h"
#include "port.h"
#include "workloads.h"

#define PROFIL_CALL 0x5501
#define FUNCTION_PROFIL 1
#define FUNCTION_PCSAMPLE 4
#define EVERY_TICK 1

/* Behind the stacks of the first vCPUs. */
#define BUFFER (USER_PRIVATE + 4 * 4096)
#define BUFFER_BYTES (4 * 4096)
/* All code of user mode, with a count for each 512 bytes. */
#define USER_TEXT 0x600000
#define SCALE 0x100

struct profil_call {
    uint32_t function;
    uint32_t flags;
    int32_t pid;
    uint32_t ranges;
    uint64_t buffer;
    uint64_t size;
    uint64_t offset;
    uint32_t scale;
    uint32_t reserved;
    uint64_t time;
    uint8_t program[16];
};

struct profil_request {
    struct ioctl_body head;
    struct profil_call call;
};

static struct console console;
static struct connection connection;

static int call(int32_t pid, uint32_t function, uint64_t size)
{
    struct profil_request request = { .head = { PROFIL_CALL, 0, 0 } };
    uint32_t handle = 0;
    int outcome = wire_open(&connection, DEVICE_PROFIL, 0, &handle);

    request.call.function = function;
    request.call.flags = EVERY_TICK;
    request.call.pid = pid;
    request.call.buffer = BUFFER;
    request.call.size = size;
    request.call.offset = USER_TEXT;
    request.call.scale = SCALE;
    request.call.time = ~0ull; /* nothing here forks */
    if (outcome == 0)
        outcome = wire_call(&connection, FRAME_IOCTL, handle, &request, sizeof(request));
    /* What was turned on stays on. */
    return outcome == 0 ? wire_close(&connection, handle) : outcome;
}

void profil(void)
{
    if (this_vcpu()->index != 0)
        return;
    begin(&console);
    if (try(STEP_HELLO, say_hello(&console, &connection)) != 0
        || try(STEP_OPEN, call(threads[0][0].pid, FUNCTION_PROFIL, BUFFER_BYTES)) != 0
        || try(STEP_PROF_ALL, call(threads[1][0].pid, FUNCTION_PCSAMPLE, BUFFER_BYTES / 8)) != 0)
        reach(STAGE_FAILED);
    reach(STAGE_OPEN);
    for (;;)
        run_processes();
}
