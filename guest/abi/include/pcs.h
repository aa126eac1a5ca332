/*
 * pcs.h: the program counter sampling device, /dev/pcs, for programs in C and C++.
 *
 * A program opens the device (only one at a time; this starts the profiling clock), selects ticks by
 * PROF_* ioctls, and reads buffers of BSIZE bytes: a header, records of one size, and h_unused unused
 * bytes. Ticks that no mode selects are counted in merged records. All numbers are little-endian, as
 * the processor's own.
 *
 * The names of the historical pcs.h stand for the native records, which have 64-bit program counters
 * and the CPU. With PCS_USE_CLASSIC defined before this file is included they stand for the classic
 * records, which are bit for bit those of a machine with 32-bit words; the device gives these after
 *     ioctl(fd, PCS_SETFORMAT, PCS_FORMAT_CLASSIC)
 * Both forms have names of their own: pcs_native_psample and pcs_classic_psample, and so on.
 *
 * What the historical header has for the driver alone isn't here: WAIT, NOWAIT, SAMPPRI, struct samp_cntl and the
 * driver's own structure. The members of struct pid_list have 32 bits.
 *
 * Names that begin with PCS_ or pcs_ are additions of kvmprof; a program needs none of them. What
 * each command does, and how it can fail, is in PCS.md beside this folder.
 *
 * Needs C99 or C++11, and nothing but <stdint.h>.
 */
#ifndef KVMPROF_PCS_H
#define KVMPROF_PCS_H

#include <stdint.h>

/* The path of the device in a guest. */
#define PCS_NODE "/dev/pcs"

/* Types of records: the first byte of each. */
#define KERNEL   1  /* PSAMPLE: a tick in the kernel */
#define USER     2  /* PSAMPLE: a tick in user mode */
#define IDLE     3  /* MSAMPLE: idle ticks */
#define MKERNEL  4  /* MSAMPLE: kernel ticks that weren't selected */
#define MUSER    5  /* MSAMPLE: user ticks that weren't selected */
#define START    6  /* SSAMPLE: getpc began */
#define STOP     7  /* SSAMPLE: getpc ended */
#define IOCTL    8  /* ISAMPLE: an ioctl that getpc made */
#define KERNELI  9  /* PSAMPLE: a tick in the kernel while it serviced an interrupt */
#define MKERNELI 10 /* MSAMPLE: such ticks that weren't selected */
#define PCS_PSTAT 11 /* pcs_pstat: the account of a run of getpc */
#define PCS_COMM  12 /* pcs_comm: the name of a process */

/* Limits. */
#define BSIZE     1024 /* bytes in a buffer, unless PCS_SETBSIZE said otherwise */
#define DEF_BUFNO 3    /* buffers after an open */
#define MAX_BUFS  10   /* buffers at most */
#define MAX_LIST  5    /* processes in the list of PROF_LIST at most */

/* Commands; the third argument is an int unless it says otherwise. They return 0, or -1 and errno;
   an unknown one is EINVAL. */
#define BUF_INCR    (('P' << 8) | 01)  /* adds buffers; EINVAL beyond MAX_BUFS, and below 1 */
#define PROF_KERNEL (('P' << 8) | 02)  /* records of the kernel; argument unused */
#define PROF_ALL    (('P' << 8) | 04)  /* records of everything but idle ticks; argument unused */
#define PROF_GROUP  (('P' << 8) | 010) /* records of the processes of this process group */
#define PROF_LIST   (('P' << 8) | 020) /* records of these processes: a struct pid_list * */
#define PROF_MASK   0177               /* the commands' different bits; modes add up */

#define PCS_FLUSH     (('P' << 8) | 0x81) /* hand over the partly filled buffer; argument unused */
#define PCS_SETFORMAT (('P' << 8) | 0x82) /* PCS_FORMAT_*; EBUSY after the first PROF_* */
#define PCS_SETBSIZE  (('P' << 8) | 0x83) /* bytes in a buffer, a power of two; EBUSY as above */
#define PCS_GETHZ     (('P' << 8) | 0x84) /* returns the clock's rate in Hz; argument unused */
#define PCS_SETHZ     (('P' << 8) | 0x85) /* the clock's rate in Hz; EBUSY: others use it too */
#define PCS_STOP      (('P' << 8) | 0x86) /* end without loss: what is left, then end of file */
#define PCS_GETSTAT   (('P' << 8) | 0x87) /* stores the account: a struct pcs_status * */

#define PCS_FORMAT_NATIVE  0
#define PCS_FORMAT_CLASSIC 1

#define PCS_MIN_BSIZE 1024  /* of PCS_SETBSIZE, in bytes */
#define PCS_MAX_BSIZE 65536
#define PCS_MIN_HZ    1     /* of PCS_SETHZ */
#define PCS_MAX_HZ    10000

#define PCS_MERGE_TICKS  100 /* ticks of a CPU between two outputs of counts */
#define PCS_UNUSED_BOUND 12  /* h_unused is less, except after PCS_FLUSH and PCS_STOP */

/* The argument of PROF_LIST; shorter if p_count is less than MAX_LIST. */
struct pid_list {
	int32_t p_count;          /* number of processes, 1 to MAX_LIST */
	int32_t p_list[MAX_LIST]; /* their process ids; EINVAL for one below 1 */
};

/* The header of a buffer. */
struct pcs_native_logbuf_hdr {
	uint16_t h_unused;  /* unused bytes at the buffer's end */
	uint16_t h_pad;     /* 0 */
	uint32_t h_numlost; /* samples lost since the last buffer */
};

struct pcs_classic_logbuf_hdr {
	uint16_t h_unused;
	int16_t h_numlost; /* at most 32767; the rest comes in the next header */
};

/* One tick: KERNEL, KERNELI or USER. */
struct pcs_native_psample {
	uint8_t type;
	uint8_t sspace; /* kernel ticks: interrupt priority level in the high 4 bits, 15 with interrupts off */
	uint16_t cpu;   /* from 0 */
	int32_t pid;    /* the process, as the guest prints it; -1: unknown */
	uint64_t pc;    /* program counter */
};

struct pcs_classic_psample {
	uint8_t type;
	uint8_t sspace;
	int16_t pid; /* its low 16 bits */
	uint32_t pc; /* its low 32 bits */
};

/* A count of ticks: IDLE, MKERNEL, MKERNELI or MUSER. */
struct pcs_native_msample {
	uint8_t type;
	uint8_t cfill; /* 0 */
	uint16_t cpu;
	int32_t count;
	uint64_t ufill; /* 0 */
};

struct pcs_classic_msample {
	uint8_t type;
	uint8_t cfill;
	int16_t count; /* of all CPUs together */
	uint32_t ufill;
};

/* START and STOP. The device itself has neither these nor the following records: getpc adds them to
   its streams, which have no headers of buffers. */
struct pcs_native_ssample {
	uint8_t type;
	uint8_t cfill;  /* 0 */
	uint8_t pad[6]; /* 0 */
	int64_t stime;  /* seconds since 1970, UTC */
};

struct pcs_classic_ssample {
	uint8_t type;
	uint8_t cfill;
	uint8_t pad[2];
	int32_t stime;
};

/* IOCTL: one for each call that getpc made. */
struct pcs_native_isample {
	uint8_t type;
	uint8_t cfill;          /* 0 */
	uint8_t pad[2];         /* 0 */
	uint32_t cmd;           /* the command */
	int32_t data[MAX_LIST]; /* its argument, or the process ids of PROF_LIST; the rest 0 */
	uint8_t tail[4];        /* 0 */
};

struct pcs_classic_isample {
	uint8_t type;
	uint8_t cfill;
	uint8_t pad[2];
	uint32_t cmd;
	int16_t data[MAX_LIST]; /* the low 16 bits of each */
	uint8_t tail[2];
};

/* The account of an open device. At every moment
   ticks == recorded + merged + ungathered + stolen + lost + pending + discarded */
struct pcs_ledger {
	uint64_t ticks;      /* of all CPUs, since the open */
	uint64_t recorded;   /* handed over as single records */
	uint64_t merged;     /* handed over within a count */
	uint64_t ungathered; /* before the first PROF_* */
	uint64_t stolen;     /* the host didn't run the CPU */
	uint64_t lost;       /* the clock missed them, or no buffer was free */
	uint64_t pending;    /* not read yet */
	uint64_t discarded;  /* discarded at close */
};

/* What PCS_GETSTAT stores. */
struct pcs_status {
	struct pcs_ledger ledger;
	uint32_t hz;     /* the clock's rate for each CPU */
	uint32_t vcpus;  /* CPUs of the guest */
	uint32_t format; /* PCS_FORMAT_* */
	uint32_t bsize;  /* bytes in a buffer */
	uint32_t bufno;  /* buffers */
	uint32_t modes;  /* the PROF_* calls so far, under PROF_MASK, ORed */
};

/* PCS_PSTAT: at the end of a native stream of getpc. */
struct pcs_pstat {
	uint8_t type;
	uint8_t cfill; /* 0 */
	uint16_t vcpus;
	uint32_t format;
	uint32_t hz;
	uint32_t bsize;
	uint32_t bufno;
	uint32_t modes;
	uint64_t span; /* time from the device's open to its stop, in ns */
	struct pcs_ledger ledger;
};

/* PCS_COMM: after it, one for each process with a known name. */
struct pcs_comm {
	uint8_t type;
	uint8_t cfill;  /* 0 */
	uint8_t pad[2]; /* 0 */
	int32_t pid;
	char comm[16]; /* its name, padded with NULs */
};

/* The historical names. */
#ifdef PCS_USE_CLASSIC
#define LOGBUF_HDR pcs_classic_logbuf_hdr
#define PSAMPLE    pcs_classic_psample
#define MSAMPLE    pcs_classic_msample
#define SSAMPLE    pcs_classic_ssample
#define ISAMPLE    pcs_classic_isample
#else
#define LOGBUF_HDR pcs_native_logbuf_hdr
#define PSAMPLE    pcs_native_psample
#define MSAMPLE    pcs_native_msample
#define SSAMPLE    pcs_native_ssample
#define ISAMPLE    pcs_native_isample
#endif

/* Records in a buffer of BSIZE bytes, and the unused bytes. */
#define NUMSAMPS ((BSIZE - sizeof(struct LOGBUF_HDR)) / sizeof(struct PSAMPLE))
#define NUMWASTE (BSIZE - sizeof(struct LOGBUF_HDR) - NUMSAMPS * sizeof(struct PSAMPLE))

/* A buffer of BSIZE bytes. Records of either kind have the same size: look at the type first. */
struct LOGBUF {
	struct LOGBUF_HDR lb_buf_hdr;
	struct PSAMPLE lb_data[NUMSAMPS];
	char lb_wasted[NUMWASTE];
};

#endif /* KVMPROF_PCS_H */
