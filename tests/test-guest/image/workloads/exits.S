/*
 * Instructions that exit, each with a symbol of its own, just as long as it is,
 * in front of what counts it. Called with the address of a count in rsi.
 */
#include "../unclaimed.h"

    /* name: rax, rcx and rdx are free. */
    .macro exiting name, instruction:vararg
    .globl \name
    .type \name, @function
\name:
    \instruction
    .size \name, . - \name
    incq (%rsi)
    ret
    .endm

    .section .user.text, "ax", @progbits
    .globl count_port_write
count_port_write:
    mov $UNCLAIMED_PORT, %edx
    exiting exit_by_port_write, outb %al, %dx

    .text
    .globl count_port_read
count_port_read:
    mov $UNCLAIMED_PORT, %edx
    exiting exit_by_port_read, inl %dx, %eax

    .globl count_mmio_read
count_mmio_read:
    mov $UNCLAIMED_MMIO, %ecx
    exiting exit_by_mmio_read, movzwl 2(%rcx), %eax

    .globl count_mmio_write
count_mmio_write:
    mov $UNCLAIMED_MMIO, %ecx
    exiting exit_by_mmio_write, movq $1, 8(%rcx)

    .section .note.GNU-stack, "", @progbits
