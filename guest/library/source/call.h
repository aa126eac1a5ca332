/*
 * What is said to /dev/profil (guest/abi/PROFIL.md). tests/call.rs compares it with the definitions of the wire.
 */
#ifndef KVMPROF_CALL_H
#define KVMPROF_CALL_H

#if !defined __x86_64__ || defined __ILP32__
#error "kvmprof's guests are x86-64, and /dev/profil takes no calls of 32-bit programs"
#endif

#include <stdint.h>

#define PROFIL_NODE "/dev/profil"
#define PROFIL_CALL (('U' << 8) | 1)

/* The functions. */
enum {
	SOLARIS_PROFIL = 1,
	AIX_PROFIL = 2,
	AIX_RANGES = 3,
	PCSAMPLE = 4,
};

/* A flag: every tick is stored. */
#define EVERY_TICK 1

/* The data of PROFIL_CALL. What is last in it pcsd fills in, who sees who calls. */
struct call {
	uint32_t function;
	uint32_t flags;
	int32_t pid;
	uint32_t ranges;
	/* The address of the buffer; for AIX_RANGES that of the array of struct prof. */
	uint64_t buffer;
	uint64_t size;
	uint64_t offset;
	uint32_t scale;
	uint32_t zero;
	uint64_t time;
	unsigned char program[16];
};

#define INTERNAL __attribute__((visibility("hidden")))

/* Carries out a call. The result is the function's, or a negative errno. */
INTERNAL long kvmprof_carry_out(const struct call *call);

/* Makes a system call. The result is the kernel's: a negative errno if it failed. errno stays as it is. */
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

#endif /* KVMPROF_CALL_H */
