/* Access to the devices, and system calls without the C library. */
#ifndef KVMPROF_DEVICE_H
#define KVMPROF_DEVICE_H

#if !defined __x86_64__ || defined __ILP32__
#error "kvmprof's guests are x86-64, and /dev/profil takes no calls of 32-bit programs"
#endif

#define INTERNAL __attribute__((visibility("hidden")))
#define EXPORTED __attribute__((visibility("default")))

/* Executes a command with this data on the device of a node. Returns the command's result, or a negative errno. */
INTERNAL long kvmprof_carry_out(const char *node, unsigned long command, void *data);

/* Makes a system call. Returns the kernel's result, a negative errno if it failed. Doesn't change errno. */
static inline long system_call(long number, long a, long b, long c, long d, long e, long f)
{
	register long fourth __asm__("r10") = d;
	register long fifth __asm__("r8") = e;
	register long sixth __asm__("r9") = f;
	long result;

	__asm__ volatile("syscall"
	                 : "=a"(result)
	                 : "a"(number), "D"(a), "S"(b), "d"(c), "r"(fourth), "r"(fifth), "r"(sixth)
	                 : "rcx", "r11", "memory");
	return result;
}

#endif /* KVMPROF_DEVICE_H */
