/*
 * The first vCPU starts and stops its clock without an end, by opening and closing pcs. Each time the host needs the other
 * vCPUs, which are busy with a register of the device that this goes through.
 */
#include "../virtio/mmio.h"
#include "port.h"
#include "workloads.h"

static struct console console;
static struct connection connection;

void clock_flood(void)
{
    if (this_vcpu()->index != 0) {
        for (;;)
            register_read(options.console, REGISTER_STATUS);
    }
    begin(&console);
    reach(STAGE_START);
    if (try(STEP_HELLO, say_hello(&console, &connection)) != 0)
        reach(STAGE_FAILED);
    for (;;) {
        uint32_t handle;
        if (try(STEP_OPEN, wire_open(&connection, DEVICE_PCS, 0, &handle)) != 0)
            reach(STAGE_FAILED);
        if (try(STEP_CLOSE, wire_close(&connection, handle)) != 0)
            reach(STAGE_FAILED);
        kvmprof_port_results.buffers++;
    }
}
