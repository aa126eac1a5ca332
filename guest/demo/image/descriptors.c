/*
 * Segments, task state and interrupt descriptors. Each vCPU has its own GDT,
 * since the task state is marked busy in it; the IDT is shared.
 */
#include "kernel.h"

#define GATE_PRESENT_INTERRUPT 0x8e00ull
#define GATE_USER 0x6000ull

struct gate {
    uint64_t low;
    uint64_t high;
};

extern uint8_t system_call_entry[];
extern uint8_t timer_entry[];
extern uint8_t spurious_entry[];
extern uint8_t exception_entries[];

static struct gate idt[256];
static uint8_t interrupt_stacks[VCPUS][INTERRUPT_STACK] __attribute__((aligned(16)));

static void set_gate(uint32_t vector, const void *handler)
{
    uint64_t address = (uint64_t)handler;

    idt[vector].low = (address & 0xffff) | KERNEL_CS << 16 | GATE_PRESENT_INTERRUPT << 32 | (address >> 16 & 0xffff) << 48;
    idt[vector].high = address >> 32;
}

void build_idt(void)
{
    for (uint32_t vector = 0; vector < 32; vector++)
        set_gate(vector, exception_entries + 8 * vector);
    set_gate(TIMER_VECTOR, timer_entry);
    set_gate(SPURIOUS_VECTOR, spurious_entry);
    set_gate(SYSTEM_CALL_VECTOR, system_call_entry);
    idt[SYSTEM_CALL_VECTOR].low |= GATE_USER << 32;
}

void set_up_descriptors(struct vcpu *vcpu)
{
    struct task_state *state = &vcpu->tss;
    uint64_t tss = (uint64_t)state;
    uint64_t interrupt_stack = (uint64_t)&interrupt_stacks[vcpu->index + 1];

    /*
     * User mode may use no port, unless a workload allows one in the bitmap.
     * There is no IOPL for this where user mode runs natively on a KVM without
     * VT-x or SVM.
     */
    state->rsp0[0] = (uint32_t)interrupt_stack;
    state->rsp0[1] = (uint32_t)(interrupt_stack >> 32);
    state->port_bitmap = offsetof(struct task_state, forbidden_ports);
    for (uint32_t i = 0; i < sizeof(state->forbidden_ports); i++)
        state->forbidden_ports[i] = 0xff;

    vcpu->gdt[KERNEL_CS / 8] = 0x00af9b000000ffff;
    vcpu->gdt[KERNEL_SS / 8] = 0x00cf93000000ffff;
    vcpu->gdt[USER_SS / 8] = 0x00cff3000000ffff;
    vcpu->gdt[USER_CS / 8] = 0x00affb000000ffff;
    vcpu->gdt[TSS_SELECTOR / 8] = (sizeof(*state) - 1) | (tss & 0xffffff) << 16 | 0x89ull << 40 | (tss >> 24 & 0xff) << 56;
    vcpu->gdt[TSS_SELECTOR / 8 + 1] = tss >> 32;

    struct pseudo_descriptor gdt_register = { sizeof(vcpu->gdt) - 1, (uint64_t)vcpu->gdt };
    struct pseudo_descriptor idt_register = { sizeof(idt) - 1, (uint64_t)idt };
    load_descriptor_tables(&gdt_register, &idt_register);

}
