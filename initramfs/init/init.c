/* First process of a guest that is started from a shared folder (kvmprof run --root): makes the folder the root, runs a shell
   or a command there, and powers off when that has ended. It needs no file of the folder for itself. */

#include "root.h"
#include "settings.h"
#include "system.h"
#include "text.h"

/* Where the guest says how it has ended, before it powers off (devices/src/legacy/power.rs). */
enum { EXIT_STATUS_PORT = 0x604 };
/* The disk that takes its place where the kernel can't power off, or -1. */
static long status_disk = -1;
/* Statuses of shells: a command that isn't there, and what is added to a signal's number. */
enum { NOT_FOUND = 127, BY_SIGNAL = 128 };

__asm__(".globl _start\n"
    "_start:\n"
    "    xor %ebp, %ebp\n"
    "    and $-16, %rsp\n"
    "    call start\n"
    "    ud2\n");

_Noreturn void start(void);

static _Noreturn void power_off(unsigned char status)
{
    CALL(SYS_sync, 0, 0, 0);
    if (status_disk >= 0) {
        static char sector[512] = "ended:";
        sector[length(sector)] = (char)status;
        CALL(SYS_write, status_disk, sector, sizeof sector);
        CALL(SYS_fsync, status_disk, 0, 0);
        /* LINUX_REBOOT_CMD_RESTART: without ACPI to power off, the kernel would halt. */
        CALL(SYS_reboot, 0xfee1dead, 0x28121969, 0x01234567);
    }
    if (CALL(SYS_iopl, 3, 0, 0) >= 0)
        __asm__ volatile("outb %0, %1" : : "a"(status), "Nd"((unsigned short)EXIT_STATUS_PORT));
    /* LINUX_REBOOT_CMD_POWER_OFF, with its two magic numbers (reboot(2)). */
    CALL(SYS_reboot, 0xfee1dead, 0x28121969, 0x4321fedc);
    for (;;)
        CALL(SYS_exit, 1, 0, 0);
}

/* Opens a device, whose driver may find it in a moment. The result is negative if it isn't there. */
static long open_device(const char *device, long flags)
{
    char path[64] = "/dev/";
    size_t at = length(path);
    for (const char *name = device; *name && at < sizeof path - 1; name++)
        path[at++] = *name;
    long file = 0;
    for (int try = 0; try < TRIES; try++) {
        file = CALL(SYS_open, path, flags, 0);
        if (file >= 0)
            return file;
        wait_a_little();
    }
    SAY(path, " can't be opened: error ", digits(-file));
    return file;
}

/* Gives the process, and those it starts, a session with the console as its terminal, so that Ctrl-C gets through. It is this
   process's own session: when a session's first process ends, what it has written last may not have come out yet, and is lost. */
static void open_console(const struct settings *settings)
{
    CALL(SYS_setsid, 0, 0, 0);
    long terminal = open_device(settings->console, O_RDWR);
    if (terminal < 0)
        power_off(1);
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
    if (settings.status)
        status_disk = open_device(settings.status, O_WRONLY | O_CLOEXEC);
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
