/*
 * The page tables, all known at link time, so that start-up builds none.
 *
 * Every address space shares the kernel half (PML4 entry 0): the first GiB and
 * the fourth, identity-mapped, supervisor only, except for the pages with user
 * code and data. Every process has a PML4 of its own; its entry 1 leads to
 * private pages.
 */
#include "layout.h"

#define PRESENT 1
#define WRITE 2
#define USER 4
#define UNCACHED 0x18
#define LARGE 0x80

    .section .page_tables, "aw", @progbits
    .balign 4096

    .globl kernel_pml4
kernel_pml4:
    .quad shared_pdpt + (PRESENT | WRITE | USER)
    .fill 511, 8, 0

    .globl shared_pdpt
shared_pdpt:
    .quad first_gib + (PRESENT | WRITE | USER)
    .quad 0, 0
    .quad fourth_gib + (PRESENT | WRITE)
    .fill 508, 8, 0

first_gib:
    .set page, 0
    .rept 512
    .if page == 0x600000
    .quad user_pages + (PRESENT | WRITE | USER)
    .else
    .quad page + (PRESENT | WRITE | LARGE)
    .endif
    .set page, page + 0x200000
    .endr

/* Devices only, the local APIC at 0xfee00000 among them. */
fourth_gib:
    .set page, DEVICES
    .rept 512
    .quad page + (PRESENT | WRITE | UNCACHED | LARGE)
    .set page, page + 0x200000
    .endr

user_pages:
    .set page, 0x600000
    .rept 512
    .quad page + (PRESENT | WRITE | USER)
    .set page, page + 4096
    .endr

    .macro process_tables number
process_pml4_\number:
    .quad shared_pdpt + (PRESENT | WRITE | USER)
    .quad process_pdpt_\number + (PRESENT | WRITE | USER)
    .fill 510, 8, 0
process_pdpt_\number:
    .quad process_pd_\number + (PRESENT | WRITE | USER)
    .fill 511, 8, 0
process_pd_\number:
    .quad process_pt_\number + (PRESENT | WRITE | USER)
    .fill 511, 8, 0
    .type process_pt_\number, @object
    .size process_pt_\number, 4096
process_pt_\number:
    .set page, 0
    .rept USER_PRIVATE_PAGES
    .quad process_memory + page + \number * USER_PRIVATE_PAGES * 4096 + (PRESENT | WRITE | USER)
    .set page, page + 4096
    .endr
    .fill 512 - USER_PRIVATE_PAGES, 8, 0
    .endm

    process_tables 0
    process_tables 1
    process_tables 2
    process_tables 3

    .data
    .balign 8
    .globl process_pml4
process_pml4:
    .quad process_pml4_0, process_pml4_1, process_pml4_2, process_pml4_3

    .bss
    .balign 4096
    .type process_memory, @object
    .size process_memory, PROCESSES * USER_PRIVATE_PAGES * 4096
process_memory:
    .skip PROCESSES * USER_PRIVATE_PAGES * 4096

    .section .note.GNU-stack, "", @progbits
