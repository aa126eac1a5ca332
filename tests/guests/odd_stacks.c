/* Spends its time in functions whose callers are hard to find. Each kind has a function of its own in which it spins. */

#define _GNU_SOURCE
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

#define APART __attribute__((noinline, noclone))
/* Keeps a call from being the last thing that a function does. */
#define GO_ON __asm__ volatile("" ::: "memory")
/* Lets a pointer's memory be used for what the compiler doesn't know. */
#define USE(pointer) __asm__ volatile("" : : "r"(pointer) : "memory")

enum { TURNS = 200000, FAR = 150000 };

volatile unsigned long spun;

static inline void spin(void)
{
    for (int turn = 0; turn < TURNS; turn++)
        spun++;
}

/* Aligned more than the stack is, with a part whose length isn't known before: the compiler keeps the caller's stack
   pointer in memory. */
APART static void in_realigned(volatile char *room)
{
    spin();
    room[1]++;
}

APART static void realigned(int length)
{
    _Alignas(64) volatile char room[128];
    volatile char more[length];

    USE(more);
    in_realigned(room);
    USE(more);
}

APART static void far_frame(int length)
{
    volatile char room[FAR];

    USE(room);
    realigned(length);
    USE(room);
}

/* The same, without a call. */
APART static void spins_realigned(int length)
{
    _Alignas(64) volatile long sums[32];
    volatile char more[length];

    USE(more);
    for (int turn = 0; turn < TURNS; turn++)
        sums[turn % 32] += turn;
    USE(more);
}

/* The caller's stack pointer is in another register, or in memory. RBP has other values. */
void by_register(void);
void by_memory(void);
__asm__(".text\n"
        ".type by_register, @function\n"
        "by_register:\n"
        ".cfi_startproc\n"
        "mov %rsp, %rdx\n"
        ".cfi_def_cfa_register %rdx\n"
        "push %rbp\n"
        ".cfi_offset %rbp, -16\n"
        "sub $256, %rsp\n"
        "and $-128, %rsp\n"
        "mov $0x777, %ebp\n"
        "mov $400000, %ecx\n"
        "1: dec %ecx\n"
        "jnz 1b\n"
        "mov -8(%rdx), %rbp\n"
        ".cfi_restore %rbp\n"
        "mov %rdx, %rsp\n"
        ".cfi_def_cfa_register %rsp\n"
        "ret\n"
        ".cfi_endproc\n"
        ".size by_register, . - by_register\n"
        ".type by_memory, @function\n"
        "by_memory:\n"
        ".cfi_startproc\n"
        "mov %rsp, %rdx\n"
        ".cfi_def_cfa_register %rdx\n"
        "sub $256, %rsp\n"
        "and $-128, %rsp\n"
        "mov %rdx, 24(%rsp)\n"
        /* 8 above the word that is 24 above RSP */
        ".cfi_escape 0x0f, 5, 0x77, 24, 0x06, 0x23, 8\n"
        "xor %edx, %edx\n"
        "mov $400000, %ecx\n"
        "1: dec %ecx\n"
        "jnz 1b\n"
        "mov 24(%rsp), %rdx\n"
        ".cfi_def_cfa %rdx, 8\n"
        "mov %rdx, %rsp\n"
        ".cfi_def_cfa_register %rsp\n"
        "ret\n"
        ".cfi_endproc\n"
        ".size by_memory, . - by_memory\n");

APART __attribute__((optimize("no-omit-frame-pointer"))) static void with_rules(void)
{
    by_register();
    by_memory();
    GO_ON;
}

/* Three functions without unwind information and without frame pointers. */
void loose_outer(void);
__asm__(".text\n"
        ".type loose_leaf, @function\n"
        "loose_leaf:\n"
        "mov $400000, %ecx\n"
        "1: dec %ecx\n"
        "jnz 1b\n"
        "ret\n"
        ".size loose_leaf, . - loose_leaf\n"
        ".type loose_middle, @function\n"
        "loose_middle:\n"
        "sub $24, %rsp\n"
        "movq $1, (%rsp)\n"
        "call loose_leaf\n"
        "add $24, %rsp\n"
        "ret\n"
        ".size loose_middle, . - loose_middle\n"
        ".type loose_outer, @function\n"
        "loose_outer:\n"
        "sub $40, %rsp\n"
        "call loose_middle\n"
        "add $40, %rsp\n"
        "ret\n"
        ".size loose_outer, . - loose_outer\n");

APART __attribute__((optimize("no-omit-frame-pointer"))) static void framed(void)
{
    loose_outer();
    GO_ON;
}

/* A function of another context, on a stack of its own. */
static ucontext_t home, elsewhere;
static char room[65536];

APART static void in_context(void)
{
    spin();
    GO_ON;
}

static void context(void)
{
    in_context();
    GO_ON;
}

APART static void starts_context(void)
{
    getcontext(&elsewhere);
    elsewhere.uc_stack.ss_sp = room;
    elsewhere.uc_stack.ss_size = sizeof(room);
    elsewhere.uc_link = &home;
    makecontext(&elsewhere, context, 0);
    swapcontext(&home, &elsewhere);
}

/* The return address is in a register while the child runs. */
APART static void spawns(void)
{
    pid_t child = vfork();

    if (child == 0)
        _exit(0);
    waitpid(child, NULL, 0);
    GO_ON;
}

int main(int count, char **arguments)
{
    (void)arguments;
    for (;;) {
        far_frame(count + 40);
        spins_realigned(count + 40);
        with_rules();
        framed();
        starts_context();
        for (int turn = 0; turn < 20; turn++)
            spawns();
    }
}
