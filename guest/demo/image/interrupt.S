/*
 * Ways into the kernel and out of it. IRETQ is the only way to user mode, since
 * interrupts need it anyway, and INT3 the way back (see processes.c). Interrupts
 * of kernel mode stay on its stack; those of user mode come in on the interrupt
 * stack (TSS).
 *
 * Where kernel mode is interpreted, an instruction that accesses memory can take
 * a microsecond. So the time for the truth is read as near to the border as
 * possible: first on the way in, last on the way out.
 */
#include "layout.h"

    .text

/*
 * uint64_t resume_user(struct thread *thread)
 *
 * Continues a thread in user mode until its next system call, and returns that
 * call's number. thread->result is the result of its last system call, or at
 * first the argument of its program. On the way, this publishes the update of
 * the truth that truth_prepare() has prepared. Interrupts must be off.
 */
    .globl resume_user
    .type resume_user, @function
resume_user:
    push %rbx
    push %rbp
    push %r12
    push %r13
    push %r14
    push %r15
    mov %rsp, %gs:VCPU_KERNEL_RSP
    pushq $USER_SS
    pushq THREAD_RSP(%rdi)
    pushq THREAD_RFLAGS(%rdi)
    pushq $USER_CS
    pushq THREAD_RIP(%rdi)
    mov THREAD_RBX(%rdi), %rbx
    mov THREAD_RBP(%rdi), %rbp
    mov THREAD_R12(%rdi), %r12
    mov THREAD_R13(%rdi), %r13
    mov THREAD_R14(%rdi), %r14
    mov THREAD_R15(%rdi), %r15
    mov %gs:VCPU_ENDED_CYCLES, %rcx
    mov %gs:VCPU_NEXT_SLOT, %rsi
    mov %gs:VCPU_TRUTH, %r8
    mov THREAD_RESULT(%rdi), %rdi
    mov %gs:VCPU_STEAL_TIME, %rax
    cmp %gs:VCPU_STOLEN, %rax
    jne 2f
1:  rdtsc
    shl $32, %rdx
    or %rdx, %rax
    add %rax, (%rcx)
    mov %rax, SLOT_SINCE(%rsi)
    incq TRUTH_UPDATES(%r8)
    mov %rdi, %rax
    iretq
2:  push %rdi
    push %rcx
    push %rsi
    push %r8
    mov %rax, %rdi
    call truth_take_stolen
    pop %r8
    pop %rsi
    pop %rcx
    pop %rdi
    jmp 1b
    .size resume_user, . - resume_user

/*
 * The entry of system calls, on the interrupt stack: rax = number. For user code
 * every register but rbx, rbp, rsp and r12 to r15 is clobbered.
 */
    .globl system_call_entry
    .type system_call_entry, @function
system_call_entry:
    mov %rax, %rcx
    mov %gs:VCPU_STEAL_TIME, %rax
    mov %rax, %gs:VCPU_ENTERED_STOLEN
    rdtsc
    mov %eax, %gs:VCPU_ENTERED
    mov %edx, %gs:VCPU_ENTERED + 4
    mov %gs:VCPU_CURRENT, %rdx
    popq THREAD_RIP(%rdx)
    pop %rax
    popq THREAD_RFLAGS(%rdx)
    popq THREAD_RSP(%rdx)
    mov %rbx, THREAD_RBX(%rdx)
    mov %rbp, THREAD_RBP(%rdx)
    mov %r12, THREAD_R12(%rdx)
    mov %r13, THREAD_R13(%rdx)
    mov %r14, THREAD_R14(%rdx)
    mov %r15, THREAD_R15(%rdx)
    mov %gs:VCPU_KERNEL_RSP, %rsp
    pop %r15
    pop %r14
    pop %r13
    pop %r12
    pop %rbp
    pop %rbx
    mov %rcx, %rax
    ret
    .size system_call_entry, . - system_call_entry

    .globl timer_entry
    .type timer_entry, @function
timer_entry:
    incl %gs:VCPU_NESTING
    push %rax
    push %rdx
    mov %gs:VCPU_STEAL_TIME, %rax
    mov %rax, %gs:VCPU_ENTERED_STOLEN
    rdtsc
    mov %eax, %gs:VCPU_ENTERED
    mov %edx, %gs:VCPU_ENTERED + 4
    push %rcx
    push %rsi
    push %rdi
    push %r8
    push %r9
    push %r10
    push %r11
    cld
    call timer_interrupt
    pop %r11
    pop %r10
    pop %r9
    pop %r8
    pop %rdi
    pop %rsi
    pop %rcx
    pop %rdx
    lea .Lbefore_halt(%rip), %rax
    cmp %rax, 8(%rsp)
    je 2f
1:  pop %rax
    decl %gs:VCPU_NESTING
    iretq
2:  lea .Lafter_halt(%rip), %rax
    mov %rax, 8(%rsp)
    jmp 1b
    .size timer_entry, . - timer_entry

/*
 * void halt_once(void)
 *
 * STI lets no interrupt in before HLT, but under an emulated SVM one gets in when
 * the vCPU exits between the two. Nothing would wake it up again, so timer_entry
 * doesn't return to the HLT.
 */
    .globl halt_once
    .type halt_once, @function
halt_once:
    sti
.Lbefore_halt:
    hlt
.Lafter_halt:
    cli
    ret
    .size halt_once, . - halt_once

    .globl spurious_entry
    .type spurious_entry, @function
spurious_entry:
    iretq
    .size spurious_entry, . - spurious_entry

/* An exception is a defect of this guest: one entry for each, 8 bytes apart. */
    .balign 8
    .globl exception_entries
    .type exception_entries, @function
exception_entries:
    .set vector, 0
    .rept 32
    .balign 8
    pushq $vector
    jmp exception_common
    .set vector, vector + 1
    .endr
exception_common:
    mov %rsp, %rdi
    call exception
    .size exception_entries, . - exception_entries

    .section .note.GNU-stack, "", @progbits
