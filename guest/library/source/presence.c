/*
 * The hypervisor stores only to pages that are present and private to the process. A page that was never written isn't, and
 * no page is after fork(2), because parent and child share it until one of them writes. So each page is written once
 * without changing it: when a function is turned on, and in parent and child after each fork.
 *
 * The program may have unmapped its buffer, or may never have had one; this must not end it. So the kernel writes:
 * futex(2) with FUTEX_WAKE_OP changes a word atomically, here by an or with 0, and fails with EFAULT if it can't.
 */

#include <linux/futex.h>
#include <pthread.h>
#include <sys/syscall.h>

#include "presence.h"

/* The smallest page. */
#define PAGE 4096
/* A buffer of more bytes isn't made present, because the program may have reserved more than there is memory. */
#define PRESENT_MAX ((size_t)64 << 20)
/* Changes the word by an or with 0. Waiters are woken only if it equals a number that hardly any word has. */
#define OR_WITH_ZERO FUTEX_OP(FUTEX_OP_OR, 0, FUTEX_OP_CMP_EQ, 0x800)

struct target kvmprof_solaris, kvmprof_aix;

/* A futex that nobody waits for. */
static uint32_t nothing;

static int write_unchanged(uintptr_t address)
{
	uintptr_t word = address & ~(uintptr_t)3;

	return system_call(SYS_futex, (long)&nothing, FUTEX_WAKE_OP | FUTEX_PRIVATE_FLAG, 0, 0, (long)word, OR_WITH_ZERO) >=
	       0;
}

int kvmprof_make_present(const struct target *target)
{
	uintptr_t address = __atomic_load_n(&target->start, __ATOMIC_RELAXED);
	size_t left = __atomic_load_n(&target->length, __ATOMIC_RELAXED);
	int all = 1;

	if (left > PRESENT_MAX)
		left = PRESENT_MAX;
	while (left > 0) {
		size_t in_page = PAGE - address % PAGE;

		all &= write_unchanged(address);
		if (in_page >= left)
			break;
		address += in_page;
		left -= in_page;
	}
	return all;
}

void kvmprof_set_target(struct target *target, uint32_t function, uintptr_t start, size_t length)
{
	__atomic_store_n(&target->function, function, __ATOMIC_RELAXED);
	__atomic_store_n(&target->start, start, __ATOMIC_RELAXED);
	__atomic_store_n(&target->length, length, __ATOMIC_RELAXED);
	kvmprof_make_present(target);
}

static void make_all_present(void)
{
	kvmprof_make_present(&kvmprof_solaris);
	kvmprof_make_present(&kvmprof_aix);
}

__attribute__((constructor)) static void watch_forks(void)
{
	/* If there is no memory for this, stores wait until the program itself writes to the page. */
	(void)pthread_atfork(NULL, make_all_present, make_all_present);
}
