/* The names of the workloads. */
#include "workloads.h"

static const struct workload workloads[] = {
    { "mixed", mixed },
    { "duty", duty },
    { "spin", spin },
    { "gaps", gaps },
    { "pio", pio },
    { "kernel-pio", kernel_pio },
    { "mmio", memory_io },
    { "string-io", string_io },
    { "irqoff", irqoff },
    { "halt", halt },
    { "hostile", hostile },
    { "port", port },
    { "hostile-queues", hostile_queues },
    { "poweroff", end_by_power_off },
    { "reboot", end_by_reboot },
    { "triple-fault", end_by_triple_fault },
    { "bad-instruction", end_by_bad_instruction },
};

const struct workload *find_workload(const char *name)
{
    for (uint32_t i = 0; i < sizeof(workloads) / sizeof(workloads[0]); i++) {
        if (equal(workloads[i].name, name))
            return &workloads[i];
    }
    return NULL;
}
