/*
 * The demo's workload: everything that the profiler distinguishes, in known shares. A cycle takes
 * about 40 ms, in random order and with slices of random lengths.
 */
#include "kernel.h"

#define CYCLE_MS 40

/* Percent of a cycle. The weaver's slice includes the interrupt. */
#define WEAVER 30
#define SPINNER 20
#define CARDER 10
#define DYER 5
#define COMPUTE 10
#define INTERRUPTS_OFF 8
#define INTERRUPT 5
#define IDLE 12

enum activity { RUN_WEAVER, RUN_SPINNER, RUN_CARDER, RUN_DYER, RUN_IDLE, ACTIVITIES };

static uint64_t percent(uint64_t share)
{
    return random_length(kvmprof_truth.tsc_khz * CYCLE_MS / 100 * share);
}

/* The kernel's work for a spinner, with interrupts on. */

static OWN_FRAME void add_up(uint64_t length)
{
    compute(length);
    APART("sum");
}

static OWN_FRAME void enter_in_ledger(uint64_t length)
{
    compute(length);
    APART("ledger");
}

static OWN_FRAME void reckon_pay(uint64_t length)
{
    uint64_t entering = length / 3;

    add_up(length - entering);
    enter_in_ledger(entering);
}

static OWN_FRAME void pay_spinner(void)
{
    uint64_t length = percent(COMPUTE);

    truth_enter(ROW_KERNEL);
    interrupts_on();
    reckon_pay(length);
    interrupts_off();
    truth_leave(ROW_SWITCHING);
}

/* The kernel's work for a carder. */

static OWN_FRAME void move_bales(uint64_t length)
{
    stretch_with_interrupts_off(length);
    APART("bales");
}

static OWN_FRAME void fill_store(void)
{
    uint64_t length = percent(INTERRUPTS_OFF);

    truth_enter(ROW_INTERRUPTS_OFF);
    move_bales(length);
    truth_leave(ROW_SWITCHING);
}

void do_system_call(uint64_t number)
{
    if (number == CALL_COMPUTE)
        pay_spinner();
    else if (number == CALL_INTERRUPTS_OFF)
        fill_store();
}

static OWN_FRAME void perform(enum activity activity)
{
    static const uint32_t shares[] = { WEAVER + INTERRUPT, SPINNER, CARDER, DYER };
    struct vcpu *vcpu = this_vcpu();

    if (activity == RUN_IDLE) {
        vcpu->interrupt_length = 0;
        idle(percent(IDLE));
        return;
    }
    struct thread *thread = &threads[activity][vcpu->index];
    uint64_t length = percent(shares[activity]);
    if (activity == RUN_WEAVER) {
        vcpu->interrupt_length = percent(INTERRUPT);
        timer_arm(length * (random_number() >> 20 & 127) / 160);
    }
    switch_to(thread);
    run_slice(thread, length);
}

void run_workload(void)
{
    enum activity order[ACTIVITIES] = { RUN_WEAVER, RUN_SPINNER, RUN_CARDER, RUN_DYER, RUN_IDLE };

    for (uint32_t process = 0; process < PROCESSES; process++) {
        struct thread *thread = &threads[process][this_vcpu()->index];
        switch_to(thread);
        run_slice(thread, 0); /* up to its first yield */
    }
    for (;;) {
        for (uint32_t i = ACTIVITIES - 1; i > 0; i--) {
            uint32_t other = (uint32_t)((random_number() >> 20) % (i + 1));
            enum activity swapped = order[i];
            order[i] = order[other];
            order[other] = swapped;
        }
        for (uint32_t i = 0; i < ACTIVITIES; i++)
            perform(order[i]);
    }
}
