/* The system calls of Linux that the program needs (x86-64; Documentation/arch/x86/entry_64.rst of the kernel). They return
   a negative error number when they fail. */

#pragma once

#include <stddef.h>

enum {
    SYS_read = 0,
    SYS_write = 1,
    SYS_open = 2,
    SYS_close = 3,
    SYS_ioctl = 16,
    SYS_access = 21,
    SYS_dup2 = 33,
    SYS_nanosleep = 35,
    SYS_fork = 57,
    SYS_execve = 59,
    SYS_exit = 60,
    SYS_wait4 = 61,
    SYS_fsync = 74,
    SYS_chdir = 80,
    SYS_mkdir = 83,
    SYS_setsid = 112,
    SYS_chroot = 161,
    SYS_sync = 162,
    SYS_mount = 165,
    SYS_reboot = 169,
    SYS_iopl = 172,
    SYS_finit_module = 313,
};

enum { ENOENT = 2, ECHILD = 10, EEXIST = 17, ENODEV = 19, EINVAL = 22 };
enum { O_RDONLY = 0, O_WRONLY = 1, O_RDWR = 2, O_CLOEXEC = 02000000 };
enum { MS_RDONLY = 1, MS_NOSUID = 2, MS_NODEV = 4, MS_NOEXEC = 8, MS_MOVE = 8192 };
enum { TCSBRK = 0x5409, TIOCSCTTY = 0x540e, TIOCSWINSZ = 0x5414 };

static inline long call5(long number, long a, long b, long c, long d, long e)
{
    register long fourth __asm__("r10") = d;
    register long fifth __asm__("r8") = e;
    long result;
    __asm__ volatile("syscall"
                 : "=a"(result)
                 : "a"(number), "D"(a), "S"(b), "d"(c), "r"(fourth), "r"(fifth)
                 : "rcx", "r11", "memory");
    return result;
}

#define CALL(number, a, b, c) call5(number, (long)(a), (long)(b), (long)(c), 0, 0)

static inline long mount(const char *source, const char *target, const char *type, long flags, const char *data)
{
    return call5(SYS_mount, (long)source, (long)target, (long)type, flags, (long)data);
}

/* How long a device may take to be found: so many times the time of wait_a_little. */
enum { TRIES = 500 };

/* Sleeps for 20 ms. */
static inline void wait_a_little(void)
{
    long time[2] = { 0, 20 * 1000 * 1000 };
    CALL(SYS_nanosleep, time, NULL, 0);
}
