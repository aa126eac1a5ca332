/*
 * What the host's kernel counts of a guest, on behalf of three processes, which
 * make three, two and one of it in turn: halts, and first touches of memory. The
 * guest halts for good when it is done.
 */
#include "workloads.h"

#define HALT_ROUNDS 100
#define TOUCH_ROUNDS 3

/* Memory that nobody else uses, in parts that KVM brings in one by one, whatever the host's pages are. */
#define UNTOUCHED 0x1000000
#define PART 0x200000

static const uint32_t turns[] = { 3, 2, 1 };

#define PROCESSES_IN_TURN (sizeof(turns) / sizeof(turns[0]))

static void begin(uint32_t process)
{
    switch_to(&threads[process][this_vcpu()->index]);
    truth_enter(ROW_KERNEL);
}

static void end(void)
{
    truth_leave(ROW_SWITCHING);
}

/* A quarter of a millisecond: long enough that the vCPU is halted when the timer's interrupt comes. */
void halts(void)
{
    struct counter *counter = this_counter();

    while (counter->rounds < HALT_ROUNDS) {
        for (uint32_t process = 0; process < PROCESSES_IN_TURN; process++) {
            begin(process);
            for (uint32_t turn = 0; turn < turns[process]; turn++) {
                timer_arm(kvmprof_truth.tsc_khz / 4);
                halt_once();
            }
            end();
        }
        counter->rounds++;
    }
    switch_to(&idle_threads[this_vcpu()->index]);
}

__attribute__((noinline)) void touch_memory(volatile uint8_t *address)
{
    *address = 1;
}

/* On one vCPU. */
void touches(void)
{
    struct counter *counter = this_counter();
    uint64_t address = UNTOUCHED;

    while (counter->rounds < TOUCH_ROUNDS) {
        for (uint32_t process = 0; process < PROCESSES_IN_TURN; process++) {
            begin(process);
            for (uint32_t turn = 0; turn < turns[process]; turn++) {
                touch_memory((volatile uint8_t *)address);
                address += PART;
            }
            end();
        }
        counter->rounds++;
    }
    switch_to(&idle_threads[this_vcpu()->index]);
}
