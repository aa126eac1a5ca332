/*
 * Rounds of port and memory I/O with every register that they don't use filled
 * with a pattern: a VMM that looks at or changes registers while an access is
 * unfinished breaks one of them.
 */
#include "../unclaimed.h"

#define PATTERN 0x5a5a0000

    .macro fill
    push %rbx
    push %rbp
    push %r12
    push %r13
    push %r14
    push %r15
    mov $PATTERN + 1, %rbx
    mov $PATTERN + 2, %rbp
    mov $PATTERN + 8, %r8
    mov $PATTERN + 9, %r9
    mov $PATTERN + 10, %r10
    mov $PATTERN + 11, %r11
    mov $PATTERN + 12, %r12
    mov $PATTERN + 13, %r13
    mov $PATTERN + 14, %r14
    mov $PATTERN + 15, %r15
    .endm

    /* Jumps to 1f, with rax = 1, if the operands differ. */
    .macro expect value, register
    mov $1, %eax
    cmp \value, \register
    jne 1f
    .endm

    .macro check
    expect $PATTERN + 1, %rbx
    expect $PATTERN + 2, %rbp
    expect $PATTERN + 8, %r8
    expect $PATTERN + 9, %r9
    expect $PATTERN + 10, %r10
    expect $PATTERN + 11, %r11
    expect $PATTERN + 12, %r12
    expect $PATTERN + 13, %r13
    expect $PATTERN + 14, %r14
    expect $PATTERN + 15, %r15
    xor %eax, %eax
1:
    pop %r15
    pop %r14
    pop %r13
    pop %r12
    pop %rbp
    pop %rbx
    ret
    .endm

    .text

/* uint64_t string_io_round(uint8_t *buffer, uint64_t bytes): 1 if something was wrong. */
    .globl string_io_round
    .type string_io_round, @function
string_io_round:
    fill
    push %rsi
    push %rdi
    mov %rsi, %rcx
    mov $UNCLAIMED_PORT, %edx
    rep insb
    /* rdi has to stand at the end now, rcx at 0. */
    pop %rsi
    mov (%rsp), %rcx
    mov %rsi, %rax
    add %rcx, %rax
    sub %rax, %rdi
    rep outsb
    sub %rax, %rsi
    pop %rax
    expect $0, %rdi
    expect $0, %rsi
    expect $0, %rcx
    expect $UNCLAIMED_PORT, %rdx
    check
    .size string_io_round, . - string_io_round

/* uint64_t memory_io_round(void): 1 if something was wrong. */
    .globl memory_io_round
    .type memory_io_round, @function
memory_io_round:
    fill
    mov $UNCLAIMED_MMIO, %esi
    mov $PATTERN, %edi
    mov (%rsi), %rdx
    expect $-1, %rdx
    mov %rdi, 8(%rsi)
    xor %edx, %edx
    mov 16(%rsi), %dl
    expect $0xff, %rdx
    mov %di, 24(%rsi)
    xor %edx, %edx
    mov 0x1000(%rsi), %dx
    expect $0xffff, %rdx
    mov %dil, 0x1001(%rsi)
    xor %edx, %edx
    add 0xffc(%rsi), %edx
    inc %edx
    expect $0, %rdx
    movl $PATTERN, (%rsi)
    expect $UNCLAIMED_MMIO & 0xffffffff, %esi
    expect $PATTERN, %rdi
    check
    .size memory_io_round, . - memory_io_round

    .section .note.GNU-stack, "", @progbits
