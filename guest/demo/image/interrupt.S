/*
 * Ways into the kernel and out of it. IRETQ is the only way to user mode, since
 * interrupts need it anyway, and INT3 the way back (see processes.c). Interrupts
 * of kernel mode stay on its stack; those of user mode come in on the interrupt
 * stack (TSS).
 *
 * Where kernel mode is interpreted, an instruction that accesses memory can take
 * a microsecond. So the time for the truth is read as near to the border as
 * possible: first on the way in, last on the way out.
 *
 * The unwind information takes what the processor has pushed for a call: the interrupted program
 * counter is the return address, and CS, RFLAGS, RSP and SS lie above it, where kvmprof knows them by
 * their form.
 */
#include "layout.h"

    .macro save register
    push \register
    .cfi_adjust_cfa_offset 8
    .endm

    .macro restore register
    pop \register
    .cfi_adjust_cfa_offset -8
    .endm

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
    .cfi_startproc
    save %rbx
    save %rbp
    .cfi_rel_offset %rbp, 0
    save %r12
    save %r13
    save %r14
    save %r15
    mov %rsp, %gs:VCPU_KERNEL_RSP
    save $USER_SS
    save THREAD_RSP(%rdi)
    save THREAD_RFLAGS(%rdi)
    save $USER_CS
    save THREAD_RIP(%rdi)
    mov THREAD_RBX(%rdi), %rbx
    mov THREAD_RBP(%rdi), %rbp
    mov THREAD_R12(%rdi), %r12
    mov THREAD_R13(%rdi), %r13
    mov THREAD_R14(%rdi), %r14
    mov THREAD_R15(%rdi), %r15
    mov THREAD_RESULT(%rdi), %rdi
    jmp leave_to_user
    .cfi_endproc
    .size resume_user, . - resume_user

/*
 * The way out to user mode, by what an IRETQ takes from the stack: rdi = result of the system call,
 * rbx, rbp and r12 to r15 are the thread's.
 */
    .type leave_to_user, @function
leave_to_user:
    .cfi_startproc
    mov %gs:VCPU_ENDED_CYCLES, %rcx
    mov %gs:VCPU_NEXT_SLOT, %rsi
    mov %gs:VCPU_TRUTH, %r8
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
2:  save %rdi
    save %rcx
    save %rsi
    save %r8
    mov %rax, %rdi
    call truth_take_stolen
    restore %r8
    restore %rsi
    restore %rcx
    restore %rdi
    jmp 1b
    .cfi_endproc
    .size leave_to_user, . - leave_to_user

/*
 * The entry of system calls, on the interrupt stack: rax = number. For user code every register but
 * rbx, rbp, rsp and r12 to r15 is clobbered. Calls that are served here return to the thread, others
 * are the result of resume_user().
 */
    .globl system_call_entry
    .type system_call_entry, @function
system_call_entry:
    .cfi_startproc
    mov %rax, %rcx
    mov %gs:VCPU_STEAL_TIME, %rax
    mov %rax, %gs:VCPU_ENTERED_STOLEN
    rdtsc
    mov %eax, %gs:VCPU_ENTERED
    mov %edx, %gs:VCPU_ENTERED + 4
    cmp $FIRST_SERVED, %rcx
    jb 1f
    sub $8, %rsp
    .cfi_adjust_cfa_offset 8
    mov %rcx, %rdi
    call serve_system_call
    add $8, %rsp
    .cfi_adjust_cfa_offset -8
    mov %rax, %rdi
    jmp leave_to_user
1:  mov %gs:VCPU_CURRENT, %rdx
    popq THREAD_RIP(%rdx)
    .cfi_undefined %rip             /* until the kernel's own stack is back */
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
    .cfi_def_cfa %rsp, 56
    .cfi_offset %rip, -8
    .cfi_offset %rbp, -24
    restore %r15
    restore %r14
    restore %r13
    restore %r12
    restore %rbp
    .cfi_restore %rbp
    restore %rbx
    mov %rcx, %rax
    ret
    .cfi_endproc
    .size system_call_entry, . - system_call_entry

    .globl timer_entry
    .type timer_entry, @function
timer_entry:
    .cfi_startproc
    incl %gs:VCPU_NESTING
    save %rax
    save %rdx
    mov %gs:VCPU_STEAL_TIME, %rax
    mov %rax, %gs:VCPU_ENTERED_STOLEN
    rdtsc
    mov %eax, %gs:VCPU_ENTERED
    mov %edx, %gs:VCPU_ENTERED + 4
    save %rcx
    save %rsi
    save %rdi
    save %r8
    save %r9
    save %r10
    save %r11
    cld
    call timer_interrupt
    restore %r11
    restore %r10
    restore %r9
    restore %r8
    restore %rdi
    restore %rsi
    restore %rcx
    restore %rdx
    lea .Lbefore_halt(%rip), %rax
    cmp %rax, 8(%rsp)
    je 2f
1:  restore %rax
    decl %gs:VCPU_NESTING
    iretq
2:  .cfi_adjust_cfa_offset 8
    lea .Lafter_halt(%rip), %rax
    mov %rax, 8(%rsp)
    jmp 1b
    .cfi_endproc
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
    .cfi_startproc
    sti
.Lbefore_halt:
    hlt
.Lafter_halt:
    cli
    ret
    .cfi_endproc
    .size halt_once, . - halt_once

    .globl spurious_entry
    .type spurious_entry, @function
spurious_entry:
    .cfi_startproc
    iretq
    .cfi_endproc
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
