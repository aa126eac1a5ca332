/* A program that begins with instructions of its own, which have no unwind information. */

__asm__(".text\n"
        ".globl _start\n"
        ".type _start, @function\n"
        "_start:\n"
        "xor %ebp, %ebp\n"
        "mov %rsp, %rdi\n"
        "and $-16, %rsp\n"
        "call begin\n"
        "hlt\n"
        ".size _start, . - _start\n");

volatile unsigned long spun;

__attribute__((noinline, noclone)) static void own_leaf(void)
{
    for (int turn = 0; turn < 200000; turn++)
        spun++;
}

__attribute__((noinline, noclone)) static void own_middle(void)
{
    own_leaf();
    spun++;
}

__attribute__((used)) void begin(void)
{
    for (;;)
        own_middle();
}
