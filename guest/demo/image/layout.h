/*
 * Constants that assembly and C share: where things lie in memory and in the
 * structures that assembly touches. kernel.h checks the offsets against its
 * structures, src/lib.rs repeats the row numbers and the truth's layout.
 */
#ifndef LAYOUT_H
#define LAYOUT_H

/* Maximum number of vCPUs of the guest. */
#define VCPUS 64

/* Bytes of a vCPU's stacks: the kernel's own, and the one an interrupt of user mode switches to. */
#define KERNEL_STACK 4096
#define INTERRUPT_STACK 4096

/* Number of processes in addition to the kernel's idle process with pid 0. */
#define PROCESSES 4

/* The address of every process's private memory: PML4 entry 1, apart from the identity map. */
#define USER_PRIVATE 0x8000000000
/* Pages of private memory, and those of each vCPU's thread for its stack. */
#define USER_PRIVATE_PAGES 8
#define USER_STACK (USER_PRIVATE_PAGES * 4096 / VCPUS)

/* The addresses that are mapped for devices. */
#define DEVICES 0xc0000000
#define DEVICES_END 0x100000000

/* User mode may use a port below this if its bit in the task state is 0. At first no bit is. */
#define BITMAP_PORTS 0x518

/* Selectors. */
#define KERNEL_CS 0x08
#define KERNEL_SS 0x10
#define USER_SS 0x1b
#define USER_CS 0x23
#define TSS_SELECTOR 0x28

/* struct vcpu, which GS points to in kernel mode and in user mode alike. */
#define VCPU_CURRENT 0
#define VCPU_NESTING 8
#define VCPU_KERNEL_RSP 16
#define VCPU_ENTERED 24
#define VCPU_ENTERED_STOLEN 32
#define VCPU_TRUTH 40
#define VCPU_ENDED_CYCLES 48
#define VCPU_NEXT_SLOT 56
#define VCPU_STOLEN 64
#define VCPU_STEAL_TIME 128
#define VCPU_SIZE 576

/* struct thread */
#define THREAD_PID 0
#define THREAD_TID 4
#define THREAD_PROCESS_GROUP 8
#define THREAD_COMM 16
#define THREAD_RIP 32
#define THREAD_RSP 40
#define THREAD_RFLAGS 48
#define THREAD_RBX 56
#define THREAD_RBP 64
#define THREAD_R12 72
#define THREAD_R13 80
#define THREAD_R14 88
#define THREAD_R15 96
#define THREAD_RESULT 104
#define THREAD_STRIDE 128

/* The truth */
#define TRUTH_UPDATES 0
#define SLOT_SINCE 8

/* System calls from this number on are served where they come in, by serve_system_call(); others end
 * the slice. */
#define FIRST_SERVED 16

/* INT3, the instruction for system calls of user mode. */
#define SYSTEM_CALL_VECTOR 3
/* Interrupt vectors above the processor's own 32. */
#define TIMER_VECTOR 0x40
#define SPURIOUS_VECTOR 0xff

#endif
