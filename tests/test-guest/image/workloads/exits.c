/*
 * A known number of exits, each kind on behalf of another process and in another
 * function. The guest counts them itself, and halts when it is done.
 */
#include "workloads.h"

#define ROUNDS 300
/* Exits of a round: all different, so that no mix-up goes unnoticed. */
#define PORT_WRITES 4
#define PORT_READS 3
#define MMIO_READS 2
#define MMIO_WRITES 1

/* exits.S. Each makes one exit, and counts it. */
void count_port_write(uint64_t unused, uint64_t *count);
void count_port_read(uint64_t unused, uint64_t *count);
void count_mmio_read(uint64_t unused, uint64_t *count);
void count_mmio_write(uint64_t unused, uint64_t *count);

/* A system call, as the kernel's own programs make it. */
static __attribute__((always_inline)) inline void yield(void)
{
    uint64_t number = CALL_YIELD;

    __asm__ volatile("int3"
                     : "+a"(number)
                     :
                     : "rcx", "rdx", "rsi", "rdi", "r8", "r9", "r10", "r11", "memory");
}

static USER_CODE void write_ports(uint64_t address)
{
    struct counter *counter = (struct counter *)address;

    for (;;) {
        for (uint32_t i = 0; i < PORT_WRITES; i++)
            count_port_write(0, &counter->exits.port_writes);
        yield();
    }
}

/* The kernel, on behalf of a process. */
static void repeat(void (*exit)(uint64_t, uint64_t *), uint32_t process, uint32_t times, uint64_t *count)
{
    switch_to(&threads[process][this_vcpu()->index]);
    truth_enter(ROW_KERNEL);
    for (uint32_t i = 0; i < times; i++)
        exit(0, count);
    truth_leave(ROW_SWITCHING);
}

/* Rounds up to that number. */
static void make_exits(uint64_t rounds)
{
    struct thread *writer = &threads[0][this_vcpu()->index];
    struct counter *counter = this_counter();

    _Static_assert(UNCLAIMED_PORT < BITMAP_PORTS, "layout.h");
    this_vcpu()->tss.forbidden_ports[UNCLAIMED_PORT / 8] &= (uint8_t)~(1 << UNCLAIMED_PORT % 8);
    set_program(writer, write_ports);
    while (counter->rounds < rounds) {
        switch_to(writer);
        run_slice(writer, (uint64_t)counter);
        repeat(count_port_read, 1, PORT_READS, &counter->exits.port_reads);
        repeat(count_mmio_read, 2, MMIO_READS, &counter->exits.mmio_reads);
        repeat(count_mmio_write, 3, MMIO_WRITES, &counter->exits.mmio_writes);
        counter->rounds++;
    }
    switch_to(&idle_threads[this_vcpu()->index]);
}

void exits(void)
{
    make_exits(ROUNDS);
}

void endless_exits(void)
{
    make_exits(UINT64_MAX);
}
