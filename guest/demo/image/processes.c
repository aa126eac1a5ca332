/*
 * The processes: four programs in user mode, each with its own page tables and
 * a thread on every vCPU, and what the kernel does for them. Programs measure
 * their slices themselves, by TSC. They compare lengths, never points in time
 * that the kernel has read: where user mode runs natively and kernel mode is
 * interpreted, nothing promises that both have the same offset to the TSC.
 */
#include "kernel.h"

#define RFLAGS_FIXED 0x2
#define RFLAGS_INTERRUPTS 0x200

struct thread idle_threads[VCPUS];
struct thread threads[PROCESSES][VCPUS];

/* ---- user mode ---- */

/*
 * A system call is an INT3: where kernel mode is interpreted, SYSCALL leaves
 * the CPL at 3 and INT n is an invalid opcode, while INT3 works everywhere.
 */
static __attribute__((always_inline)) inline uint64_t system_call(uint64_t number)
{
    uint64_t result = number;
    __asm__ volatile("int3"
                     : "+a"(result)
                     :
                     : "rcx", "rdx", "rsi", "rdi", "r8", "r9", "r10", "r11", "memory");
    return result;
}

/* Four loops with different code, each of a given length. */
static USER_CODE void weave(uint64_t length)
{
    uint64_t start = rdtsc(), thread = start;
    do {
        thread ^= thread << 13;
        thread ^= thread >> 7;
        thread ^= thread << 17;
        __asm__ volatile("" : : "r"(thread));
    } while (rdtsc() - start < length);
}

static USER_CODE void turn_wheel(uint64_t length)
{
    uint64_t start = rdtsc();
    do {
        for (uint32_t turn = 0; turn < 50; turn++)
            __asm__ volatile("");
    } while (rdtsc() - start < length);
}

static USER_CODE void card(uint64_t length)
{
    uint64_t start = rdtsc();
    uint64_t wool[8];
    do {
        for (uint32_t turn = 0; turn < 8; turn++)
            wool[turn] = turn * start;
        __asm__ volatile("" : : "r"(wool) : "memory");
    } while (rdtsc() - start < length);
}

static USER_CODE void dye(uint64_t length)
{
    uint64_t start = rdtsc(), colour = 1;
    do {
        colour = colour * 6364136223846793005 + 1442695040888963407;
        __asm__ volatile("" : : "r"(colour));
    } while (rdtsc() - start < length);
}

/* The callers of these loops, which src/stacks.rs repeats. */

static USER_CODE void lay_warp(uint64_t length)
{
    weave(length);
    APART("warp");
}

static USER_CODE void throw_shuttle(uint64_t length)
{
    weave(length);
    APART("shuttle");
}

static USER_CODE void beat_weft(uint64_t length)
{
    weave(length);
    APART("weft");
}

static USER_CODE void weave_rows(uint64_t length)
{
    uint64_t beating = length / 8 * 3;

    throw_shuttle(length - beating);
    beat_weft(beating);
}

static USER_CODE void weave_cloth(uint64_t length)
{
    uint64_t laying = length / 4;

    lay_warp(laying);
    weave_rows(length - laying);
}

static USER_CODE void weaver(uint64_t unused)
{
    (void)unused;
    for (;;)
        weave_cloth(system_call(CALL_YIELD));
}

static USER_CODE void draw_fibres(uint64_t length)
{
    turn_wheel(length);
    APART("fibres");
}

static USER_CODE void twist_yarn(uint64_t length)
{
    turn_wheel(length);
    APART("yarn");
}

static USER_CODE void spin_yarn(uint64_t length)
{
    uint64_t twisting = length / 3;

    draw_fibres(length - twisting);
    twist_yarn(twisting);
}

static USER_CODE void ask_for_pay(void)
{
    system_call(CALL_COMPUTE);
}

static USER_CODE void sell_yarn(void)
{
    ask_for_pay();
    APART("sold");
}

static USER_CODE void spinner(uint64_t unused)
{
    (void)unused;
    for (;;) {
        spin_yarn(system_call(CALL_YIELD));
        sell_yarn();
    }
}

static USER_CODE void open_fleece(uint64_t length)
{
    card(length);
    APART("fleece");
}

static USER_CODE void comb_wool(uint64_t length)
{
    card(length);
    APART("wool");
}

static USER_CODE void card_fleece(uint64_t length)
{
    uint64_t opening = length / 3;

    open_fleece(opening);
    comb_wool(length - opening);
}

static USER_CODE void store_wool(void)
{
    system_call(CALL_INTERRUPTS_OFF);
}

static USER_CODE void carder(uint64_t unused)
{
    (void)unused;
    for (;;) {
        card_fleece(system_call(CALL_YIELD));
        store_wool();
    }
}

static USER_CODE void soak_cloth(uint64_t length)
{
    dye(length);
    APART("cloth");
}

static USER_CODE void dye_cloth(uint64_t length)
{
    soak_cloth(length);
    APART("dyed");
}

static USER_CODE void dyer(uint64_t unused)
{
    (void)unused;
    for (;;)
        dye_cloth(system_call(CALL_YIELD));
}

/* ---- the kernel's side ---- */

static const struct {
    int32_t pid;
    int32_t process_group;
    char comm[16];
    void (*program)(uint64_t);
    uint32_t row;
} programs[PROCESSES] = {
    { 101, 100, "weaver", weaver, ROW_WEAVER },
    { 102, 100, "spinner", spinner, ROW_SPINNER },
    { 103, 100, "carder", carder, ROW_CARDER },
    { 201, 200, "dyer", dyer, ROW_DYER },
};

static void copy_comm(struct thread *thread, const char comm[16])
{
    for (uint32_t i = 0; i < sizeof(thread->comm); i++)
        thread->comm[i] = comm[i];
}

/* Prepares the threads of one vCPU. vCPU 0 has the main threads, with tid = pid. */
void set_up_processes(uint32_t index)
{
    for (uint32_t process = 0; process < PROCESSES; process++) {
        struct thread *thread = &threads[process][index];
        int32_t pid = programs[process].pid;

        thread->pid = pid;
        thread->tid = index == 0 ? pid : pid * 1000 + (int32_t)index;
        thread->process_group = programs[process].process_group;
        thread->row = programs[process].row;
        copy_comm(thread, programs[process].comm);
        thread->rsp = USER_PRIVATE + (index + 1) * USER_STACK - 8;
        thread->rflags = RFLAGS_FIXED | RFLAGS_INTERRUPTS;
        set_program(thread, programs[process].program);
        thread->page_table = process_pml4[process];
    }
    struct thread *idle_thread = &idle_threads[index];
    static const char idle_comm[16] = "idle";
    idle_thread->row = ROW_IDLE;
    idle_thread->page_table = (uint64_t)kernel_pml4;
    copy_comm(idle_thread, idle_comm);
}

/* Makes a thread start another program. The program's argument is the length of its first slice. */
void set_program(struct thread *thread, void (*program)(uint64_t))
{
    thread->rip = (uint64_t)program;
}

/* Makes a thread the current one, with its memory. */
void switch_to(struct thread *thread)
{
    struct vcpu *vcpu = this_vcpu();

    if (vcpu->page_table != thread->page_table) {
        vcpu->page_table = thread->page_table;
        write_cr3(thread->page_table);
    }
    vcpu->current = thread;
}

/* Continues the current thread until it makes a system call; returns its number. */
uint64_t run_slice(struct thread *thread, uint64_t length)
{
    thread->result = length;
    truth_prepare(thread->row);
    uint64_t number = resume_user(thread);
    truth_entered(ROW_SWITCHING);
    return number;
}

__attribute__((weak)) void do_system_call(uint64_t number)
{
    (void)number;
}

/* Called by system_call_entry on the interrupt stack; its return value is the system call's result. */
uint64_t serve_system_call(uint64_t number)
{
    truth_entered(ROW_SWITCHING);
    do_system_call(number);
    truth_prepare(this_vcpu()->current->row);
    return 0;
}

/* Halts until the next interrupt, which comes in `length` TSC cycles or never (0). */
void idle(uint64_t length)
{
    switch_to(&idle_threads[this_vcpu()->index]);
    if (length != 0)
        timer_arm(length);
    truth_enter(ROW_IDLE);
    halt_once();
    truth_leave(ROW_SWITCHING);
}

static __attribute__((always_inline)) inline void pass(uint64_t length)
{
    uint64_t start = rdtsc();
    while (rdtsc() - start < length)
        __asm__ volatile("");
}

/* The next three are separate functions, because rows of the truth differ by them. */

/* Kernel work on behalf of a process, interrupts on. */
OWN_FRAME void compute(uint64_t length)
{
    pass(length);
    APART("system call");
}

/* Kernel work with interrupts off, which only a clock outside the guest can sample. */
OWN_FRAME void stretch_with_interrupts_off(uint64_t length)
{
    interrupts_off();
    pass(length);
    APART("interrupts off");
}

/* The work of the timer's interrupt. */
OWN_FRAME void service_interrupt(uint64_t length)
{
    pass(length);
    APART("interrupt");
}

/* xorshift64 (Marsaglia 2003). */
uint64_t random_number(void)
{
    struct vcpu *vcpu = this_vcpu();
    uint64_t number = vcpu->random;

    number ^= number << 13;
    number ^= number >> 7;
    number ^= number << 17;
    return vcpu->random = number;
}

/* Between a half and one and a half times the mean, so that no slice is in step with a clock. */
uint64_t random_length(uint64_t mean)
{
    return mean * (512 + (random_number() >> 20) % 1024) >> 10;
}
