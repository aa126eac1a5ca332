/*
 * The ground truth: the number of TSC cycles of each row on each vCPU, counted at every transition.
 *
 * The host may read at any moment, also when this vCPU is stopped during an update. So each vCPU
 * has two slots and writes the one that the host doesn't read; `updates` then makes it the valid
 * one. The slot to write is one update old, and that update changed the cycles of one row: only
 * these have to be copied before the new change.
 *
 * Time in which the host ran something else belongs to no row: KVM counts it, and it is subtracted
 * from the row in which it occurred.
 */
#include "kernel.h"

#define MAGIC 0x48545552544d564bull /* "KVMTRUTH" */

struct truth kvmprof_truth __attribute__((aligned(64))) = {
    .magic = MAGIC,
    .version = 1,
    .rows = ROWS,
    .block_size = sizeof(struct truth_block),
};

_Static_assert(sizeof(struct truth_block) == 320, "src/truth.rs");
_Static_assert(offsetof(struct truth, vcpu) == 64, "src/truth.rs");

#define CPUID_SIGNATURE 0x40000000
#define CPUID_FEATURES 0x40000001
#define SIGNATURE_KVMK 0x4b4d564b
#define FEATURE_STEAL_TIME 0x20
#define MSR_STEAL_TIME 0x4b564d03
#define STEAL_TIME_ENABLE 1

/* TSC cycles in a nanosecond, times 2^20. */
static uint64_t cycles_per_nanosecond;

static void cpuid(uint32_t leaf, uint32_t *eax, uint32_t *ebx)
{
    uint32_t ecx = 0, edx;
    *eax = leaf;
    __asm__ volatile("cpuid" : "+a"(*eax), "=b"(*ebx), "+c"(ecx), "=d"(edx));
}

/* KVM's first value includes time before the guest, and may take until the next exit, so this is
 * called early. */
void steal_time_enable(struct vcpu *vcpu)
{
    uint32_t eax, ebx;

    cpuid(CPUID_SIGNATURE, &eax, &ebx);
    if (eax < CPUID_FEATURES || ebx != SIGNATURE_KVMK)
        return;
    cpuid(CPUID_FEATURES, &eax, &ebx);
    if (eax & FEATURE_STEAL_TIME)
        wrmsr(MSR_STEAL_TIME, (uint64_t)&vcpu->steal_time | STEAL_TIME_ENABLE);
}

/* Must be called after local_apic_calibrate(). */
void truth_calibrate(void)
{
    cycles_per_nanosecond = (kvmprof_truth.tsc_khz << 20) / 1000000;
}

void truth_start(uint64_t row)
{
    struct vcpu *vcpu = this_vcpu();

    vcpu->truth = &kvmprof_truth.vcpu[vcpu->index];
    vcpu->last_ended = row;
    vcpu->stolen = vcpu->steal_time.nanoseconds;
    vcpu->truth->slot[1].row = row;
    vcpu->truth->row = row;
    vcpu->truth->slot[1].since = rdtsc();
    __atomic_store_n(&vcpu->truth->updates, 1, __ATOMIC_RELEASE);
}

/*
 * Prepares the update that ends the running row and begins another; it takes
 * effect by publish(), here or in resume_user(). Returns the row that it ends.
 * Interrupts have to be off until then.
 */
uint64_t truth_prepare(uint64_t row)
{
    struct vcpu *vcpu = this_vcpu();
    struct truth_block *truth = vcpu->truth;
    const struct truth_slot *before = &truth->slot[truth->updates % 2];
    struct truth_slot *after = &truth->slot[(truth->updates + 1) % 2];
    uint64_t ended = before->row;

    after->cycles[vcpu->last_ended] = before->cycles[vcpu->last_ended];
    after->cycles[ROW_STOLEN] = before->cycles[ROW_STOLEN];
    after->cycles[ended] = before->cycles[ended] - before->since;
    after->row = row;
    truth->row = row;
    vcpu->last_ended = ended;
    vcpu->ended_cycles = &after->cycles[ended];
    vcpu->next_slot = after;
    return ended;
}

/* Subtracts what the steal clock has counted, up to this reading, from the row that the prepared
 * update ends. */
void truth_take_stolen(uint64_t stolen)
{
    struct vcpu *vcpu = this_vcpu();
    struct truth_block *truth = vcpu->truth;
    uint64_t cycles = (stolen - vcpu->stolen) * cycles_per_nanosecond >> 20;
    uint64_t elapsed = rdtsc() - truth->slot[truth->updates % 2].since;

    if (cycles > elapsed)
        cycles = elapsed;
    *vcpu->ended_cycles -= cycles;
    vcpu->next_slot->cycles[ROW_STOLEN] += cycles;
    vcpu->stolen = stolen;
}

/* `stolen` is the steal clock, read just before `now`. */
static inline __attribute__((always_inline)) void publish(uint64_t stolen, uint64_t now)
{
    struct vcpu *vcpu = this_vcpu();

    if (stolen != vcpu->stolen)
        truth_take_stolen(stolen);
    *vcpu->ended_cycles += now;
    vcpu->next_slot->since = now;
    __atomic_store_n(&vcpu->truth->updates, vcpu->truth->updates + 1, __ATOMIC_RELEASE);
}

/* Changes from switching to a row: the work for that counts as switching. */
void truth_enter(uint64_t row)
{
    truth_prepare(row);
    uint64_t stolen = this_vcpu()->steal_time.nanoseconds;
    publish(stolen, rdtsc());
}

/* Changes from a row that ends now to switching: the work for that counts as switching. */
void truth_leave(uint64_t row)
{
    uint64_t stolen = this_vcpu()->steal_time.nanoseconds;
    uint64_t now = rdtsc();
    truth_prepare(row);
    publish(stolen, now);
}

/* The same for a row that ended at the last entry to the kernel. Returns the row that ended. */
uint64_t truth_entered(uint64_t row)
{
    uint64_t ended = truth_prepare(row);
    publish(this_vcpu()->entered_stolen, this_vcpu()->entered);
    return ended;
}
