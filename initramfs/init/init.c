/* First process of a guest that is started from a shared folder (kvmprof run --root): makes the folder the root, runs a shell
   or a command there, and powers off when that has ended. It needs no file of the folder for itself. */

#include "root.h"
#include "settings.h"
#include "system.h"
#include "text.h"

/* Where the guest says how it has ended, before it powers off, and the register that powers off (devices/src/legacy/power.rs). */
enum { EXIT_STATUS_PORT = 0x604, SLEEP_CONTROL_PORT = 0x600 };
/* Go to the state S5 now. */
enum { SLEEP = 1 << 5 | 5 << 2 };
/* Statuses of shells: a command that isn't there, and what is added to a signal's number. */
enum { NOT_FOUND = 127, BY_SIGNAL = 128 };

__asm__(".globl _start\n"
    "_start:\n"
    "    xor %ebp, %ebp\n"
    "    and $-16, %rsp\n"
    "    call start\n"
    "    ud2\n");

_Noreturn void start(void);

static void output(unsigned short port, unsigned char value)
{
    __asm__ volatile("outb %0, %1" : : "a"(value), "Nd"(port));
}

static _Noreturn void power_off(unsigned char status)
{
    CALL(SYS_sync, 0, 0, 0);
    if (CALL(SYS_iopl, 3, 0, 0) >= 0) {
        output(EXIT_STATUS_PORT, status);
        /* As the kernel does it by ACPI: one without ACPI can't power off, and would halt, or reset. */
        output(SLEEP_CONTROL_PORT, SLEEP);
    }
    /* LINUX_REBOOT_CMD_POWER_OFF, with its two magic numbers (reboot(2)). */
    CALL(SYS_reboot, 0xfee1dead, 0x28121969, 0x4321fedc);
    for (;;)
        CALL(SYS_exit, 1, 0, 0);
}

/* Gives the process, and those it starts, a session with the console as its terminal, so that Ctrl-C gets through. It is this
   process's own session: when a session's first process ends, what it has written last may not have come out yet, and is lost. */
static void open_console(const struct settings *settings)
{
    char path[64] = "/dev/";
    size_t at = length(path);
    for (const char *name = settings->console; *name && at < sizeof path - 1; name++)
        path[at++] = *name;
    CALL(SYS_setsid, 0, 0, 0);
    long terminal = 0;
    for (int try = 0; try < TRIES; try++) {
        terminal = CALL(SYS_open, path, O_RDWR, 0);
        if (terminal >= 0)
            break;
        /* The driver of a virtio console finds its ports in a moment. */
        wait_a_little();
    }
    if (terminal < 0) {
        SAY(path, " can't be opened: error ", digits(-terminal));
        power_off(1);
    }
    CALL(SYS_ioctl, terminal, TIOCSCTTY, 0);
    if (settings->rows && settings->columns) {
        unsigned short size[4] = { (unsigned short)settings->rows, (unsigned short)settings->columns, 0, 0 };
        CALL(SYS_ioctl, terminal, TIOCSWINSZ, size);
    }
    for (int standard = 0; standard < 3; standard++)
        CALL(SYS_dup2, terminal, standard, 0);
    if (terminal > 2)
        CALL(SYS_close, terminal, 0, 0);
}

static const char *const *environment(const struct settings *settings)
{
    static const char *variables[] = {
        "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "HOME=/root",
        "TERM=vt102",
        NULL,
    };
    if (settings->terminal)
        variables[2] = settings->terminal;
    return variables;
}

static _Noreturn void run_shell(const struct settings *settings)
{
    static const char *const shells[] = { "/bin/bash", "/bin/sh", NULL };
    const char *const *variables = environment(settings);
    CALL(SYS_chdir, "/root", 0, 0);
    if (settings->command) {
        const char *const arguments[] = { "/bin/sh", "-c", settings->command, NULL };
        CALL(SYS_execve, arguments[0], arguments, variables);
    } else {
        for (const char *const *shell = shells; *shell; shell++) {
            const char *const arguments[] = { *shell, NULL };
            CALL(SYS_execve, *shell, arguments, variables);
        }
    }
    SAY("the folder has no /bin/sh that runs");
    for (;;)
        CALL(SYS_exit, NOT_FOUND, 0, 0);
}

/* Waits until the process has ended, and for those whose parents have ended before them. The result is the status as a shell has it. */
static unsigned char wait_for(long process)
{
    for (;;) {
        int status = 0;
        long ended = CALL(SYS_wait4, -1, &status, 0);
        if (ended == -ECHILD)
            return NOT_FOUND;
        if (ended == process) {
            int signal = status & 0x7f;
            return (unsigned char)(signal ? BY_SIGNAL + signal : status >> 8);
        }
    }
}

_Noreturn void start(void)
{
    static struct settings settings;
    if (!read_settings(&settings)) {
        SAY("/settings can't be used");
        power_off(1);
    }
    start_drivers(&settings);
    /* From here, for the folder may have no /dev. */
    if (!settings.init)
        open_console(&settings);
    if (!change_root(&settings))
        power_off(1);
    if (settings.init) {
        const char *const arguments[] = { settings.init, NULL };
        long result = CALL(SYS_execve, settings.init, arguments, environment(&settings));
        SAY(settings.init, " can't be run: error ", digits(-result));
        power_off(1);
    }
    long shell = CALL(SYS_fork, 0, 0, 0);
    if (shell == 0)
        run_shell(&settings);
    unsigned char status = shell < 0 ? 1 : wait_for(shell);
    /* Waits until all output has gone out (tcdrain(3)). */
    CALL(SYS_ioctl, 1, TCSBRK, 1);
    /* How a shell ends that somebody types into means nothing. */
    power_off(settings.command || status == NOT_FOUND ? status : 0);
}
