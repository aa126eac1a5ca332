/*
 * Declarations for all C files. The kernel has one stack per vCPU and no scheduler: a workload is a function that
 * calls resume_user() for a slice of a process, and gets the system call that ends it as a return value; other
 * system calls are served on the stack on which they come in. The kernel itself has no workload: each guest that
 * is linked with it defines run_workload().
 */
#ifndef KERNEL_H
#define KERNEL_H

#include <stddef.h>
#include <stdint.h>

#include "layout.h"

/* Rows of the ground truth; src/rows.rs describes them. */
enum row {
    ROW_WEAVER,
    ROW_SPINNER,
    ROW_CARDER,
    ROW_DYER,
    ROW_KERNEL,
    ROW_INTERRUPTS_OFF,
    ROW_INTERRUPT,
    ROW_SWITCHING,
    ROW_IDLE,
    ROWS,
    ROW_STOLEN = 13, /* no row: the cycles in which the host did not run this vCPU */
    ROWS_ROOM = 14,
};

/* A process's thread: one for each process and vCPU. */
struct thread {
    int32_t pid;
    int32_t tid;
    int32_t process_group;
    uint32_t row;
    char comm[16];
    uint64_t rip;
    uint64_t rsp;
    uint64_t rflags;
    uint64_t rbx;
    uint64_t rbp;
    uint64_t r12;
    uint64_t r13;
    uint64_t r14;
    uint64_t r15;
    uint64_t result; /* of the system call that it waits in */
    uint64_t page_table;
    uint64_t reserved;
};

struct pseudo_descriptor {
    uint16_t limit;
    uint64_t base;
} __attribute__((packed));

/* The processor's task state, with a bitmap of the ports that user mode may write. */
struct task_state {
    uint32_t reserved;
    uint32_t rsp0[2];
    uint32_t unused[22];
    uint16_t unused_too;
    uint16_t port_bitmap; /* its offset */
    uint8_t forbidden_ports[BITMAP_PORTS / 8 + 1]; /* a bit for each port; the last byte is all-ones */
} __attribute__((packed));

/* KVM's count of the time in which the host kept this vCPU waiting
 * (Documentation/virt/kvm/x86/msr.rst). */
struct steal_time {
    volatile uint64_t nanoseconds;
    uint64_t reserved[7];
};

/* A vCPU's own state, which GS points to. */
struct vcpu {
    struct thread *current;
    int32_t nesting; /* of interrupts */
    uint32_t index;
    uint64_t kernel_rsp;
    uint64_t entered;        /* when the last system call or interrupt came in, in TSC cycles */
    uint64_t entered_stolen; /* the steal clock at that moment */
    struct truth_block *truth;
    uint64_t *ended_cycles;       /* of the row that ends when the prepared update is published */
    struct truth_slot *next_slot; /* that this update has been prepared in */
    uint64_t stolen;              /* the steal clock at the last update of the truth */
    struct vcpu *self;
    uint64_t last_ended;       /* the row that update ended */
    uint64_t random;           /* state of the generator */
    uint64_t interrupt_length; /* of the work that the next timer interrupt does, in TSC cycles */
    uint64_t page_table;       /* in CR3 */
    struct steal_time steal_time __attribute__((aligned(64)));
    uint64_t gdt[8];
    struct task_state tss;
} __attribute__((aligned(64)));

/* The ground truth; src/truth.rs reads it. */
struct truth_slot {
    uint64_t row;   /* that runs now */
    uint64_t since; /* when it began, in TSC cycles */
    uint64_t cycles[ROWS_ROOM];
};

struct truth_block {
    uint64_t updates; /* slot[updates % 2] holds; the other one is being written */
    uint64_t row;     /* that runs, whenever the program counter is in a function of a row */
    uint64_t reserved[6];
    struct truth_slot slot[2];
};

struct truth {
    uint64_t magic;
    uint32_t version;
    uint32_t rows;
    uint32_t vcpus;
    uint32_t block_size;
    uint64_t tsc_khz;
    uint64_t reserved[4];
    struct truth_block vcpu[VCPUS];
};

extern struct truth kvmprof_truth;
extern struct vcpu vcpus[VCPUS];
extern struct thread idle_threads[VCPUS];
extern struct thread threads[PROCESSES][VCPUS];
extern const uint64_t process_pml4[PROCESSES];
extern uint8_t kernel_pml4[];

/* System calls */
enum {
    CALL_YIELD, /* give the vCPU up; the result is the length of the next slice */
    CALL_COMPUTE = FIRST_SERVED, /* have the kernel compute on the process's behalf */
    CALL_INTERRUPTS_OFF,         /* have the kernel do something with interrupts off */
};

/* For functions that appear in stacks with their names: compilers neither inline nor clone them. Compilers would merge equal
 * functions, so each has different assembly, which is a comment. */
#if defined(__clang__)
#define OWN_FRAME __attribute__((noinline))
#else
#define OWN_FRAME __attribute__((noinline, noclone, noipa))
#endif
#define APART(comment) __asm__ volatile("# " comment)

/* For functions that run in user mode: they may use private memory and USER_DATA, nothing else. */
#define USER_CODE __attribute__((section(".user.text"))) OWN_FRAME
/* For data that user mode may use beside its private memory. */
#define USER_DATA __attribute__((section(".user.data"), aligned(4096)))

/* Linux's boot parameters (Documentation/arch/x86/zero-page.rst). */
extern const uint8_t *boot_parameters;

static inline uint64_t rdtsc(void)
{
    uint32_t low, high;
    __asm__ volatile("rdtsc" : "=a"(low), "=d"(high));
    return (uint64_t)high << 32 | low;
}

static inline void wrmsr(uint32_t msr, uint64_t value)
{
    __asm__ volatile("wrmsr" : : "c"(msr), "a"((uint32_t)value), "d"((uint32_t)(value >> 32)) : "memory");
}

static inline uint64_t rdmsr(uint32_t msr)
{
    uint32_t low, high;
    __asm__ volatile("rdmsr" : "=a"(low), "=d"(high) : "c"(msr));
    return (uint64_t)high << 32 | low;
}

static inline void out8(uint16_t port, uint8_t value)
{
    __asm__ volatile("outb %0, %1" : : "a"(value), "Nd"(port));
}

static inline void write_cr3(uint64_t value)
{
    __asm__ volatile("mov %0, %%cr3" : : "r"(value) : "memory");
}

static inline void interrupts_on(void)
{
    __asm__ volatile("sti" : : : "memory");
}

static inline void interrupts_off(void)
{
    __asm__ volatile("cli" : : : "memory");
}

/* Waits for an interrupt, with interrupts on for just that long. In interrupt.S. */
void halt_once(void);

static inline struct vcpu *this_vcpu(void)
{
    struct vcpu *vcpu;
    __asm__ volatile("mov %%gs:%c1, %0" : "=r"(vcpu) : "i"(offsetof(struct vcpu, self)));
    return vcpu;
}

/*
 * The guest's workload; every guest defines it. Each vCPU calls it on its own
 * kernel stack, with interrupts off, in ROW_SWITCHING. A vCPU that returns from
 * it stops.
 */
void run_workload(void);

/*
 * A system call from FIRST_SERVED on, with interrupts off, in ROW_SWITCHING. A workload whose programs make
 * such calls defines it; without it they do nothing.
 */
void do_system_call(uint64_t number);

/* kernel.c */
__attribute__((noreturn)) void stop(void);
void triple_fault(void);
void print(const char *text);

/* descriptors.c */
void set_up_descriptors(struct vcpu *vcpu);
void build_idt(void);
void load_descriptor_tables(const struct pseudo_descriptor *gdt, const struct pseudo_descriptor *idt);

/* local_apic.c */
void local_apic_enable(void);
void local_apic_calibrate(void);
void timer_arm(uint64_t cycles);

/* truth.c */
void steal_time_enable(struct vcpu *vcpu);
void truth_calibrate(void);
void truth_start(uint64_t row);
uint64_t truth_prepare(uint64_t row);
void truth_enter(uint64_t row);
void truth_leave(uint64_t row);
uint64_t truth_entered(uint64_t row);

/* processes.c */
void set_up_processes(uint32_t index);
void set_program(struct thread *thread, void (*program)(uint64_t));
void switch_to(struct thread *thread);
uint64_t run_slice(struct thread *thread, uint64_t length);
uint64_t serve_system_call(uint64_t number);
void idle(uint64_t length);
void compute(uint64_t length);
void stretch_with_interrupts_off(uint64_t length);
void service_interrupt(uint64_t length);
uint64_t random_length(uint64_t mean);
uint64_t random_number(void);

/* interrupt.S */
uint64_t resume_user(struct thread *thread);

#endif
