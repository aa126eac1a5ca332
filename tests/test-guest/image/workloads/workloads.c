/* The names of the workloads, and the choice of one. */
#include "../text.h"
#include "workloads.h"

#define BOOT_COMMAND_LINE 0x228 /* cmd_line_ptr in Linux's boot parameters */

static const struct workload workloads[] = {
    { "duty", duty },
    { "spin", spin },
    { "gaps", gaps },
    { "pio", pio },
    { "kernel-pio", kernel_pio },
    { "mmio", memory_io },
    { "string-io", string_io },
    { "exits", exits },
    { "endless-exits", endless_exits },
    { "halts", halts },
    { "touches", touches },
    { "nested", nested },
    { "irqoff", irqoff },
    { "halt", halt },
    { "hostile", hostile },
    { "port", port },
    { "clock-flood", clock_flood },
    { "profil", profil },
    { "hostile-queues", hostile_queues },
    { "disk", disk_checks },
    { "disk-writes", disk_writes },
    { "disk-load", disk_load },
    { "network", network },
    { "hostile-network", hostile_network },
    { "vsock", vsock_echo },
    { "folder", folder_starts },
    { "poweroff", end_by_power_off },
    { "reboot", end_by_reboot },
    { "triple-fault", end_by_triple_fault },
    { "bad-instruction", end_by_bad_instruction },
};

/* What vCPU 0 has chosen for all of them. */
static const struct workload *chosen;

static const struct workload *find_workload(const char *name)
{
    for (uint32_t i = 0; i < sizeof(workloads) / sizeof(workloads[0]); i++) {
        if (equal(workloads[i].name, name))
            return &workloads[i];
    }
    return NULL;
}

static const struct workload *choose_workload(void)
{
    uint64_t command_line = *(const uint32_t *)(boot_parameters + BOOT_COMMAND_LINE);

    if (command_line != 0)
        parse_command_line((const char *)command_line);
    const struct workload *workload = find_workload(options.workload);
    if (workload == NULL) {
        print("unknown workload\r\n");
        power_off();
    }
    return workload;
}

void run_workload(void)
{
    const struct workload *workload;

    if (this_vcpu()->index == 0)
        __atomic_store_n(&chosen, choose_workload(), __ATOMIC_RELEASE);
    while ((workload = __atomic_load_n(&chosen, __ATOMIC_ACQUIRE)) == NULL)
        __asm__ volatile("pause");
    workload->run();
}
