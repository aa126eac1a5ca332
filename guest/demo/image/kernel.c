/* Start-up, and the end after a defect. */
#include "kernel.h"

#define SERIAL_PORT 0x3f8
#define PIC_MASK_PORT 0x21
#define SECOND_PIC_MASK_PORT 0xa1

_Static_assert(offsetof(struct vcpu, current) == VCPU_CURRENT, "layout.h");
_Static_assert(offsetof(struct vcpu, nesting) == VCPU_NESTING, "layout.h");
_Static_assert(offsetof(struct vcpu, kernel_rsp) == VCPU_KERNEL_RSP, "layout.h");
_Static_assert(offsetof(struct vcpu, entered) == VCPU_ENTERED, "layout.h");
_Static_assert(offsetof(struct vcpu, entered_stolen) == VCPU_ENTERED_STOLEN, "layout.h");
_Static_assert(offsetof(struct vcpu, stolen) == VCPU_STOLEN, "layout.h");
_Static_assert(offsetof(struct vcpu, steal_time) == VCPU_STEAL_TIME, "layout.h");
_Static_assert(offsetof(struct vcpu, truth) == VCPU_TRUTH, "layout.h");
_Static_assert(offsetof(struct vcpu, ended_cycles) == VCPU_ENDED_CYCLES, "layout.h");
_Static_assert(offsetof(struct vcpu, next_slot) == VCPU_NEXT_SLOT, "layout.h");
_Static_assert(sizeof(struct vcpu) == VCPU_SIZE, "layout.h");
_Static_assert(offsetof(struct thread, pid) == THREAD_PID, "layout.h");
_Static_assert(offsetof(struct thread, tid) == THREAD_TID, "layout.h");
_Static_assert(offsetof(struct thread, process_group) == THREAD_PROCESS_GROUP, "layout.h");
_Static_assert(offsetof(struct thread, comm) == THREAD_COMM, "layout.h");
_Static_assert(offsetof(struct thread, rip) == THREAD_RIP, "layout.h");
_Static_assert(offsetof(struct thread, r15) == THREAD_R15, "layout.h");
_Static_assert(offsetof(struct thread, result) == THREAD_RESULT, "layout.h");
_Static_assert(sizeof(struct thread) == THREAD_STRIDE, "layout.h");

struct vcpu vcpus[VCPUS];
uint8_t kernel_stacks[VCPUS][KERNEL_STACK] __attribute__((aligned(16)));

const uint8_t *boot_parameters;

void stop(void)
{
    for (;;)
        __asm__ volatile("cli; hlt");
}

/* Without an entry in the IDT any exception leads to two more, and so to shutdown. */
void triple_fault(void)
{
    static const struct pseudo_descriptor nothing = { 0, 0 };

    __asm__ volatile("lidt %0; ud2" : : "m"(nothing));
}

void print(const char *text)
{
    while (*text != 0)
        out8(SERIAL_PORT, (uint8_t)*text++);
}

static void print_hexadecimal(uint64_t value)
{
    for (int shift = 60; shift >= 0; shift -= 4)
        out8(SERIAL_PORT, (uint8_t)"0123456789abcdef"[value >> shift & 15]);
}

/* Prints the exception, then resets the machine by a triple fault, which can't be mistaken for success. */
__attribute__((noreturn, used)) void exception(const uint64_t *frame)
{
    static const uint8_t vectors_with_error_code[] = { 8, 10, 11, 12, 13, 14, 17, 21, 29, 30 };
    uint64_t vector = frame[0];
    uint32_t rip = 1;
    uint64_t cr2;

    for (uint32_t i = 0; i < sizeof(vectors_with_error_code); i++) {
        if (vectors_with_error_code[i] == vector)
            rip = 2;
    }
    __asm__ volatile("mov %%cr2, %0" : "=r"(cr2));
    print("exception ");
    print_hexadecimal(vector);
    print(" at ");
    print_hexadecimal(frame[rip]);
    print(" cr2 ");
    print_hexadecimal(cr2);
    print("\r\n");
    triple_fault();
    stop();
}

/* Devices are polled. Until they are programmed, the PICs would deliver interrupts to exceptions'
 * vectors. */
static void mask_device_interrupts(void)
{
    out8(PIC_MASK_PORT, 0xff);
    out8(SECOND_PIC_MASK_PORT, 0xff);
}

static void set_up_machine(uint32_t count)
{
    build_idt();
    mask_device_interrupts();
    local_apic_enable();
    local_apic_calibrate();
    truth_calibrate();
    __atomic_store_n(&kvmprof_truth.vcpus, count, __ATOMIC_RELEASE);
}

/* Called once on each vCPU, on its kernel stack. */
void kernel_main(uint64_t index, const uint8_t *parameters, uint64_t count)
{
    struct vcpu *vcpu = &vcpus[index];

    vcpu->self = vcpu;
    vcpu->index = (uint32_t)index;
    vcpu->page_table = (uint64_t)kernel_pml4;
    vcpu->random = (index + 1) * 0x9e3779b97f4a7c15;
    steal_time_enable(vcpu);
    if (index == 0) {
        boot_parameters = parameters;
        set_up_machine((uint32_t)(count < VCPUS ? count : VCPUS));
    } else {
        while (__atomic_load_n(&kvmprof_truth.vcpus, __ATOMIC_ACQUIRE) == 0)
            __asm__ volatile("pause");
    }

    set_up_descriptors(vcpu);
    local_apic_enable();
    set_up_processes(vcpu->index);
    truth_start(ROW_SWITCHING);
    run_workload();
    stop();
}
