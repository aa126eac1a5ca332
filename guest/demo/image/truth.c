/*
 * The ground truth: how many TSC cycles each row has had on each vCPU, counted
 * at every transition.
 *
 * The host may look at any moment, also when this vCPU stands still in the
 * middle of an update. So each vCPU has two slots and writes the one that the
 * host doesn't read; `updates` then makes it the one that holds. The slot to be
 * written is one update old, and that update changed the cycles of one row:
 * this is all that has to be brought up to date before the new change.
 *
 * Time in which the host ran something else is nobody's: KVM says how much that
 * was, and it is taken off the row that it fell into.
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

/* Where KVM says how long the host kept this vCPU waiting (Documentation/virt/kvm/x86/msr.rst). */
struct steal_time {
    volatile uint64_t nanoseconds;
    uint64_t reserved[7];
};

static struct steal_time steal_times[VCPUS] __attribute__((aligned(64)));

/* TSC cycles in a nanosecond, times 2^20. */
static uint64_t cycles_per_nanosecond;

static void cpuid(uint32_t leaf, uint32_t *eax, uint32_t *ebx)
{
    uint32_t ecx = 0, edx;
    *eax = leaf;
    __asm__ volatile("cpuid" : "+a"(*eax), "=b"(*ebx), "+c"(ecx), "=d"(edx));
}

static void enable_steal_time(uint32_t index)
{
    uint32_t eax, ebx;

    cpuid(CPUID_SIGNATURE, &eax, &ebx);
    if (eax < CPUID_FEATURES || ebx != SIGNATURE_KVMK)
        return;
    cpuid(CPUID_FEATURES, &eax, &ebx);
    if (eax & FEATURE_STEAL_TIME)
        wrmsr(MSR_STEAL_TIME, (uint64_t)&steal_times[index] | STEAL_TIME_ENABLE);
}

/* After local_apic_calibrate. */
void truth_calibrate(void)
{
    cycles_per_nanosecond = (kvmprof_truth.tsc_khz << 20) / 1000000;
}

void truth_start(uint64_t row)
{
    struct vcpu *vcpu = this_vcpu();

    enable_steal_time(vcpu->index);
    vcpu->truth = &kvmprof_truth.vcpu[vcpu->index];
    vcpu->last_ended = row;
    vcpu->stolen = steal_times[vcpu->index].nanoseconds;
    vcpu->truth->slot[1].row = row;
    vcpu->truth->slot[1].since = rdtsc();
    __atomic_store_n(&vcpu->truth->updates, 1, __ATOMIC_RELEASE);
}

/*
 * Prepares the update that ends the running row and begins another; it takes
 * effect by publish(), here or in resume_user. Returns the row that it ends.
 * Interrupts have to be off until then.
 */
uint64_t truth_prepare(uint64_t row)
{
    struct vcpu *vcpu = this_vcpu();
    struct truth_block *truth = vcpu->truth;
    const struct truth_slot *before = &truth->slot[truth->updates % 2];
    struct truth_slot *after = &truth->slot[(truth->updates + 1) % 2];
    uint64_t ended = before->row;
    uint64_t stolen = steal_times[vcpu->index].nanoseconds;
    uint64_t stolen_cycles = 0;

    if (stolen != vcpu->stolen) {
        stolen_cycles = (stolen - vcpu->stolen) * cycles_per_nanosecond >> 20;
        vcpu->stolen = stolen;
    }
    after->cycles[vcpu->last_ended] = before->cycles[vcpu->last_ended];
    after->cycles[ROW_STOLEN] = before->cycles[ROW_STOLEN] + stolen_cycles;
    after->cycles[ended] = before->cycles[ended] - before->since - stolen_cycles;
    after->row = row;
    vcpu->last_ended = ended;
    vcpu->ended_cycles = &after->cycles[ended];
    vcpu->next_slot = after;
    return ended;
}

static inline __attribute__((always_inline)) void publish(uint64_t now)
{
    struct vcpu *vcpu = this_vcpu();

    *vcpu->ended_cycles += now;
    vcpu->next_slot->since = now;
    __atomic_store_n(&vcpu->truth->updates, vcpu->truth->updates + 1, __ATOMIC_RELEASE);
}

/* Goes from switching to a row: the work of it is switching still. */
void truth_enter(uint64_t row)
{
    truth_prepare(row);
    publish(rdtsc());
}

/* Goes from a row, which ended at `when`, to switching or to an interrupt. Returns the row that ended. */
uint64_t truth_leave(uint64_t row, uint64_t when)
{
    uint64_t ended = truth_prepare(row);

    publish(when);
    return ended;
}
