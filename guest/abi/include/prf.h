/*
 * prf.h: the kernel profiler, /dev/prf, for programs in C and C++.
 *
 * A program writes a table of ascending kernel addresses in one write(2), turns the profiler on by
 * PRF_SETSTATE, and reads addresses and counters back. 100 times a second the program counter of each CPU
 * is looked up: in the kernel, the counter of the last address at or below it is incremented, or that of
 * the first address if all are above.
 *
 * A read(2) gives the following from the start, at any file position, as far as the buffer has room:
 *
 *     uint64_t addresses[N];
 *     uint64_t counters[N];
 *     uint64_t user;           ticks in user mode
 *     uint64_t idle;           idle ticks
 *
 * PRF_READ_SIZE(N) bytes in all. Numbers are little-endian, as the processor's own.
 *
 *     write: ENOSPC  more addresses than PRF_GETMAX, or no memory for them
 *            E2BIG   fewer than PRF_MIN_ADDRESSES, or an incomplete one
 *            EBUSY   the profiler is on
 *            EINVAL  not ascending; there is no valid table from then on
 *     read:  ENXIO   there is no valid table
 *
 * Each node has its own table and counters: /dev/prf those of all CPUs together, /dev/prf0, /dev/prf1
 * and so on those of one CPU. Any number of programs may have them open; they all see the same state,
 * and a profiler that is on stays on when they have gone. For poll(2) they are always ready.
 *
 * The whole description is in PRF.md beside this folder. Needs C99 or C++11, and nothing but <stdint.h>.
 */
#ifndef KVMPROF_PRF_H
#define KVMPROF_PRF_H

#include <stdint.h>

/* The node of all CPUs in a guest; nodes of single CPUs have their number appended. */
#define PRF_NODE "/dev/prf"

/* Commands. They return 0, or -1 and errno; an unknown one is EINVAL. */
#define PRF_GETSTATUS (('F' << 8) | 1) /* stores PRF_STATUS_*: an int * */
#define PRF_GETSIZE   (('F' << 8) | 2) /* stores the table's number of addresses, 0 without one: an int * */
#define PRF_SETSTATE  (('F' << 8) | 3) /* on or off by the lowest bit of an int; nothing without a table */
#define PRF_GETMAX    (('F' << 8) | 4) /* stores the maximum number of addresses: an int * */

/* Bits of PRF_GETSTATUS. */
#define PRF_STATUS_ON     1 /* ticks are being counted */
#define PRF_STATUS_LOADED 2 /* there is a valid table */

#define PRF_ALL_VCPUS      255    /* the minor number of PRF_NODE */
#define PRF_RATE_HZ        100    /* counts a second on each CPU */
#define PRF_WORD_SIZE      8      /* bytes in an address, and in a counter */
#define PRF_MIN_ADDRESSES  3      /* in a table */
#define PRF_MAX_ADDRESSES  262143 /* in a table of any kvmprof; PRF_GETMAX may say less */
#define PRF_EXTRA_COUNTERS 2      /* user mode, then idle */

/* Bytes of a whole table of n addresses for a reader. */
#define PRF_READ_SIZE(n) ((2 * (n) + PRF_EXTRA_COUNTERS) * PRF_WORD_SIZE)

#endif /* KVMPROF_PRF_H */
