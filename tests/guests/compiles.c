/* compiles NAME TURNS: has the kernel compile a BPF program of this name, and runs that, whose subprogram calls a function of the kernel in a loop. Says first
   what the kernel calls both. */

#include <linux/bpf.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define LOOPS 2000
#define REPEATS 200

static int bpf(int command, union bpf_attr *attributes)
{
    return (int)syscall(SYS_bpf, command, attributes, sizeof *attributes);
}

static int load(const char *name)
{
    const struct bpf_insn program[] = {
        { .code = BPF_JMP | BPF_CALL, .src_reg = BPF_PSEUDO_CALL, .imm = 1 },
        { .code = BPF_JMP | BPF_EXIT },
        /* The subprogram. */
        { .code = BPF_ALU64 | BPF_MOV | BPF_K, .dst_reg = BPF_REG_6 },
        { .code = BPF_JMP | BPF_CALL, .imm = BPF_FUNC_get_prandom_u32 },
        { .code = BPF_ALU64 | BPF_MUL | BPF_K, .dst_reg = BPF_REG_0, .imm = 7 },
        { .code = BPF_ALU64 | BPF_DIV | BPF_K, .dst_reg = BPF_REG_0, .imm = 3 },
        { .code = BPF_ALU64 | BPF_ADD | BPF_K, .dst_reg = BPF_REG_6, .imm = 1 },
        { .code = BPF_JMP | BPF_JLT | BPF_K, .dst_reg = BPF_REG_6, .off = -5, .imm = LOOPS },
        { .code = BPF_ALU64 | BPF_MOV | BPF_K, .dst_reg = BPF_REG_0 },
        { .code = BPF_JMP | BPF_EXIT },
    };
    union bpf_attr attributes = { 0 };
    attributes.prog_type = BPF_PROG_TYPE_SOCKET_FILTER;
    attributes.insns = (unsigned long)program;
    attributes.insn_cnt = sizeof program / sizeof *program;
    attributes.license = (unsigned long)"GPL";
    strncpy(attributes.prog_name, name, sizeof attributes.prog_name - 1);
    int loaded = bpf(BPF_PROG_LOAD, &attributes);
    if (loaded < 0)
        perror("BPF_PROG_LOAD");
    return loaded;
}

static void list(void)
{
    static char line[1024];
    FILE *symbols = fopen("/proc/kallsyms", "r");
    while (symbols && fgets(line, sizeof line, symbols)) {
        char *name = strstr(line, " bpf_prog_");
        if (name && strstr(name, "\t[bpf]"))
            printf("listed%s", name);
    }
    fflush(stdout);
}

int main(int argc, char **argv)
{
    static char packet[64];
    int loaded = argc == 3 ? load(argv[1]) : -1;
    if (loaded < 0)
        return 1;
    list();
    for (int turn = atoi(argv[2]); turn > 0; turn--) {
        union bpf_attr attributes = { 0 };
        attributes.test.prog_fd = (unsigned)loaded;
        attributes.test.data_in = (unsigned long)packet;
        attributes.test.data_size_in = sizeof packet;
        attributes.test.repeat = REPEATS;
        if (bpf(BPF_PROG_TEST_RUN, &attributes) < 0) {
            perror("BPF_PROG_TEST_RUN");
            return 1;
        }
    }
    return 0;
}
