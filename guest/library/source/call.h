/*
 * The protocol of /dev/profil (guest/abi/PROFIL.md). tests/library.rs compares it with the definitions of the wire.
 */
#ifndef KVMPROF_CALL_H
#define KVMPROF_CALL_H

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

/* The data of PROFIL_CALL. pcsd, which knows the caller, fills in pid, time and program. */
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

#endif /* KVMPROF_CALL_H */
