/* What the command line's workload=NAME chooses from. */
#ifndef WORKLOADS_H
#define WORKLOADS_H

#include "kernel.h"
#include "../options.h"
#include "../unclaimed.h"
#include "counters.h"

struct workload {
    const char *name;
    void (*run)(void); /* called on every vCPU, with interrupts off; returns to stop it */
};

void duty(void);
void spin(void);
void gaps(void);
void pio(void);
void kernel_pio(void);
void memory_io(void);
void string_io(void);
void exits(void);
void endless_exits(void);
void halts(void);
void touches(void);
void nested(void);
void irqoff(void);
void halt(void);
void hostile(void);
void port(void);
void clock_flood(void);
void profil(void);
void hostile_queues(void);
void disk_checks(void);
void disk_writes(void);
void disk_load(void);
void network(void);
void hostile_network(void);
void vsock_echo(void);
void folder_starts(void);
void end_by_power_off(void);
void end_by_reboot(void);
void end_by_triple_fault(void);
void end_by_bad_instruction(void);

/* endings.c */
__attribute__((noreturn)) void power_off(void);

#endif
