/*
 * Whatever may confuse someone who looks at this guest from outside: page
 * tables that lead in circles or out of memory, a GS base and a pointer to the
 * current thread that lead anywhere, absurd nesting counts, CR3 with junk in
 * the bits that don't count. Interrupts are off, and nothing here uses GS while
 * it is wrong, so the guest itself goes on.
 */
#include "workloads.h"

#define IA32_GS_BASE 0xc0000101

/* Present, writable, user, accessed, dirty. */
#define TABLE 0x67
#define LARGE_PAGE 0xe7
#define ENTRIES 512
/* How long each state is held, in turns of a loop, so that some tick falls into it. */
#define HOLD 16

static uint64_t circular_pml4[ENTRIES] __attribute__((aligned(4096)));
static uint64_t circular_table[ENTRIES] __attribute__((aligned(4096)));
static volatile uint32_t tables_ready;

extern uint64_t shared_pdpt[];

/* Where the current thread may seem to be, and GS too. */
static const uint64_t pointers[] = {
    0,
    1,
    0xfff,
    0x3fffffff,         /* the identity map's last byte: a value that crosses its end */
    0x3ffffff8,         /* mapped, where there is hardly memory */
    0x40000000,         /* not mapped */
    UNCLAIMED_MMIO,
    0xfee00000,         /* the local APIC */
    0x8000000000,       /* entry 1: the PML4 is its own PDPT, directory and table */
    0x10000000000,      /* entry 2: a table that is all its own tables */
    0x18000000000,      /* entry 3: a table at the highest physical address */
    0x20000000000,      /* entry 4: a table in device memory */
    0x28000000000,      /* entry 5: reserved bits */
    0x30000000000,      /* entry 6: a large page at a level that has none */
    0x38000000000,      /* entry 7: tables in user data */
    0x7ffffffffff8,     /* the last word of the lower half */
    0x800000000000,     /* not canonical */
    0xdeadbeefdeadbeef, /* not canonical */
    0xffff7fffffffffff, /* not canonical */
    0xffff800000000000, /* the upper half, entry 256: circular too */
    0xfffffffffffffff8,
    0xffffffffffffffff, /* sums wrap around */
};

#define POINTERS (sizeof(pointers) / sizeof(pointers[0]))

static const int32_t nestings[] = { 0, 1, 0x7fffffff, -1, -0x7fffffff - 1, 0x10000 };

#define NESTINGS (sizeof(nestings) / sizeof(nestings[0]))

static void build_tables(void)
{
    uint64_t pml4 = (uint64_t)circular_pml4;
    uint64_t table = (uint64_t)circular_table;

    for (uint32_t i = 0; i < ENTRIES; i++)
        circular_table[i] = table | TABLE;
    for (uint32_t i = 8; i < ENTRIES; i++)
        circular_pml4[i] = random_number() & ~1ull;
    circular_pml4[0] = (uint64_t)shared_pdpt | TABLE;
    circular_pml4[1] = pml4 | TABLE;
    circular_pml4[2] = table | TABLE;
    circular_pml4[3] = 0x000ffffffffff000 | TABLE;
    circular_pml4[4] = UNCLAIMED_MMIO | TABLE;
    circular_pml4[5] = 0xffffffffffffffff;
    circular_pml4[6] = pml4 | LARGE_PAGE;
    circular_pml4[7] = (uint64_t)kvmprof_counters | TABLE;
    circular_pml4[256] = pml4 | TABLE;
    circular_pml4[511] = table | TABLE;
}

static int is_canonical(uint64_t address)
{
    return (uint64_t)((int64_t)(address << 16) >> 16) == address;
}

static void hold(void)
{
    for (uint32_t turn = 0; turn < HOLD; turn++)
        __asm__ volatile("pause");
}

/* One state after the other. GS is wrong from the first wrmsr() to the last. */
static void go_round(struct vcpu *vcpu)
{
    struct thread *current = vcpu->current;

    for (uint32_t i = 0; i < POINTERS; i++) {
        write_cr3((uint64_t)circular_pml4 | (random_number() & 0xfff));
        vcpu->current = (struct thread *)pointers[i];
        vcpu->nesting = nestings[i % NESTINGS];
        hold();
        /* A GS base that isn't canonical can't be loaded. */
        if (is_canonical(pointers[i])) {
            wrmsr(IA32_GS_BASE, pointers[i]);
            hold();
        }
        write_cr3((uint64_t)kernel_pml4 | (i & 0xfff));
        hold();
        wrmsr(IA32_GS_BASE, (uint64_t)vcpu);
    }
    vcpu->current = current;
    vcpu->nesting = 0;
    write_cr3((uint64_t)kernel_pml4);
}

void hostile(void)
{
    struct vcpu *vcpu = this_vcpu();

    if (vcpu->index == 0) {
        build_tables();
        __atomic_store_n(&tables_ready, 1, __ATOMIC_RELEASE);
    } else {
        while (!__atomic_load_n(&tables_ready, __ATOMIC_ACQUIRE))
            __asm__ volatile("pause");
    }
    for (;;) {
        go_round(vcpu);
        this_counter()->rounds++;
    }
}
