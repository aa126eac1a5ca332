# A program with two functions, and the tables that Go's linker makes of them. VERSION is that of the tables' form. In a program
# that MOVES the dynamic linker writes addresses; in one that is JOINED the table is a part of another section. TELLS is whether
# the table says where the code is. WRONG is added to a word of what the program says of its parts.
    .ifndef VERSION
    .set VERSION, 120
    .endif
    .ifndef MOVES
    .set MOVES, 0
    .endif
    .ifndef JOINED
    .set JOINED, 0
    .endif
    .ifndef TELLS
    .set TELLS, 1
    .endif
    .ifndef WRONG
    .set WRONG, 0
    .endif

    .text
    .globl _start
_start:
code:
    .skip 32, 0x90
code_exit:
    .skip 16, 0x90
code_end:

    .section .rodata
    .balign 16
function_data:
    .skip 16
calls:
    .if VERSION == 118
    # The call around it, the function's kind, its file, line and name, the place of the call.
    .short -1
    .byte 0, 0
    .long 1, 20, name_add - names, 4
    .short 0
    .byte 0, 0
    .long 1, 30, name_twice - names, 8
    .else
    # The function's kind, its name, the place of the call, and the function's first line.
    .long 0, name_add - names, 4, 19
    .long 0, name_twice - names, 8, 29
    .endif

    .if JOINED
    .section .data.rel.ro, "aw"
    .skip 64, 8
    .elseif MOVES
    .section .gopclntab, "aw"
    .else
    .section .gopclntab, "a"
    .endif
    .balign 32
table:
    .if VERSION == 118
    .long 0xfffffff0
    .else
    .long 0xfffffff1
    .endif
    .byte 0, 0, 1, 8
    .quad 2, 2
    .if TELLS
    .quad code
    .else
    .quad 0
    .endif
    .quad names - table, units - table, files - table, changes - table, functions - table
names:
    .byte 0
name_work:
    .asciz "main.work"
name_exit:
    .asciz "runtime.goexit"
name_add:
    .asciz "main.add"
name_twice:
    .asciz "main.twice"
    .balign 4
units:
    .long -1, file_main - files, file_other - files
files:
file_main:
    .asciz "/src/main.go"
file_other:
    .asciz "/src/other.go"
# Differences of values, which are signed, and lengths.
changes:
    .byte 0
sizes:
    .byte 2, 4, 16, 28, 0
file_changes:
    .byte 2, 8, 2, 8, 1, 16, 0
line_changes:
    .byte 22, 4, 2, 4, 18, 4, 20, 4, 35, 16, 0
call_changes:
    .byte 0, 8, 2, 4, 2, 4, 3, 16, 0
    .balign 8
functions:
    .long 0, work - functions, code_exit - code, exit - functions, code_end - code
    .balign 8
work:
    .long 0, name_work - names, 0, 0, sizes - changes, file_changes - changes, line_changes - changes, 3, 1
    .if VERSION > 118
    .long 9
    .endif
    .byte 0, 0, 0, 4
    .long 0, 0, call_changes - changes
    .long -1, -1, -1, calls - function_data
    .balign 8
exit:
    .long code_exit - code, name_exit - names, 0, 0, sizes - changes, 0, 0, 0, -1
    .if VERSION > 118
    .long 0
    .endif
    .byte 0, 1, 0, 0

    .macro slice address, length
    .quad \address, \length, \length
    .endm
    .section .noptrdata, "aw"
    .balign 32
    .skip 64
module:
    .quad table
    slice names, units-names
    slice units, 3
    slice files, changes-files
    slice changes, functions-changes
    slice functions, 0
    slice functions, 3+WRONG
    .quad 0, code, code_end, code, code_end
    .skip 64
    .if VERSION > 118
    .skip 16
    .endif
    .skip 48
    .quad function_data
    .skip 64
