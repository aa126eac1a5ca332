/*
 * Where every vCPU starts, all at once: 64-bit mode, paging on, interrupts off,
 * rdi = index of the vCPU, rsi = address of the boot parameters (Linux's zero
 * page), rdx = number of vCPUs. rsp is undefined.
 */
#include "layout.h"

    .section .text.start, "ax"
    .globl start
    .type start, @function
start:
    .cfi_startproc
    .cfi_undefined %rip             /* the outermost function */
    cli
    cld
    mov %rdi, %rbx
    mov %rsi, %rbp
    mov %rdx, %r12

    /* The greeting comes first, since its first byte is how start-up time is measured. */
    test %rbx, %rbx
    jnz 2f
    mov $greeting, %esi
    mov $0x3f8, %edx
1:  lodsb
    test %al, %al
    jz 2f
    out %al, %dx
    jmp 1b
2:
    cmp $VCPUS, %rbx
    jae park

    /* GS first of all: from here on the kvmprof note finds the current thread (the idle one). */
    imul $VCPU_SIZE, %rbx, %r13
    add $vcpus, %r13
    imul $THREAD_STRIDE, %rbx, %rax
    add $idle_threads, %rax
    mov %rax, VCPU_CURRENT(%r13)
    xor %eax, %eax
    mov %eax, %fs
    mov %eax, %gs
    mov $0xc0000101, %ecx           /* IA32_GS_BASE */
    mov %r13d, %eax
    xor %edx, %edx
    wrmsr

    mov $kernel_pml4, %eax
    mov %rax, %cr3

    imul $KERNEL_STACK, %rbx, %rax
    lea kernel_stacks + KERNEL_STACK(%rax), %rsp
    mov %rbx, %rdi
    mov %rbp, %rsi
    mov %r12, %rdx
    call kernel_main
park:
    cli
    hlt
    jmp park
    .cfi_endproc
    .size start, . - start

/* void load_descriptor_tables(const struct pseudo_descriptor *gdt, const struct pseudo_descriptor *idt) */
    .text
    .globl load_descriptor_tables
    .type load_descriptor_tables, @function
load_descriptor_tables:
    .cfi_startproc
    lgdt (%rdi)
    lidt (%rsi)
    mov $KERNEL_SS, %eax
    mov %eax, %ss
    mov %eax, %ds
    mov %eax, %es
    mov $TSS_SELECTOR, %eax
    ltr %ax
    pop %rax
    .cfi_adjust_cfa_offset -8
    .cfi_register %rip, %rax
    pushq $KERNEL_CS
    .cfi_adjust_cfa_offset 8
    push %rax
    .cfi_adjust_cfa_offset 8
    lretq
    .cfi_endproc
    .size load_descriptor_tables, . - load_descriptor_tables

    .section .rodata
greeting:
    .asciz "kvmprof guest\r\n"

/*
 * The kvmprof notes: type 2 asks for all vCPUs to be started here, type 1 says
 * where the VMM finds who is running (layout: guest/abi, module note).
 */
    .section .note.kvmprof, "a", @note
    .balign 4
    .long 8, 4, 2
    .asciz "kvmprof"
    .long 1                         /* version */

    .long 8, 2f - 1f, 1
    .asciz "kvmprof"
1:  .long 1, 5                      /* version, entries */
    .macro entry what, width, depth, first, second
    .long \what, 1, \width, \depth  /* base 1: GS */
    .quad \first, \second, 0, 0
    .endm
    entry 1, 4, 2, VCPU_CURRENT, THREAD_PID
    entry 2, 4, 1, VCPU_NESTING, 0
    entry 3, 4, 2, VCPU_CURRENT, THREAD_PROCESS_GROUP
    entry 4, 16, 2, VCPU_CURRENT, THREAD_COMM
    entry 5, 4, 2, VCPU_CURRENT, THREAD_TID
2:
    .section .note.GNU-stack, "", @progbits
