/* Runs with frame pointers that lead in circles, too far, nowhere, and outside of what there is. */

#include <stddef.h>

enum { FLOORS = 500 };

/* The address behind the call of this. */
__attribute__((noinline)) static unsigned long behind_a_call(void)
{
    return (unsigned long)__builtin_return_address(0);
}

/* Spins with this frame pointer for a while. */
__attribute__((noinline)) static void spin_with(unsigned long frame)
{
    __asm__ volatile(
        "push %%rbp\n\t"
        "mov %0, %%rbp\n\t"
        "mov $2000000, %%ecx\n"
        "1:\n\t"
        "dec %%ecx\n\t"
        "jnz 1b\n\t"
        "pop %%rbp"
        : : "r"(frame) : "rcx", "memory", "cc");
}

int main(void)
{
    /* Each two words are a frame: that of its caller, and the way back there. */
    volatile unsigned long ring[8], tower[2 * FLOORS];
    const unsigned long back = behind_a_call();

    for (int frame = 0; frame < 8; frame += 2) {
        ring[frame] = (unsigned long)&ring[(frame + 2) % 8];
        ring[frame + 1] = back;
    }
    for (int floor = 0; floor < 2 * FLOORS; floor += 2) {
        tower[floor] = (unsigned long)&tower[floor + 2];
        tower[floor + 1] = back;
    }
    for (;;) {
        const unsigned long frames[] = {
            (unsigned long)&tower[0],
            (unsigned long)&ring[0],
            (unsigned long)&ring[6],
            (unsigned long)&ring[0] + 1,
            1,
            0x7ffffffffff8,
            0x800000000000,
            0xffff800000000000,
            0xffffffffffffffff,
        };

        for (size_t index = 0; index < sizeof(frames) / sizeof(frames[0]); index++)
            spin_with(frames[index]);
    }
}
