/*
 * The functions of pmc(9). As in NetBSD's kernel, functions that can fail return an error number, and don't change errno.
 */

#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "device.h"
#include "pmc_call.h"

/* Programs are linked with the functions that this header declares. */
#pragma GCC visibility push(default)
#include <sys/pmc.h>
#pragma GCC visibility pop

/* A struct lwp * is no pointer, but a process's id, shifted above a set lowest bit: so it is never NULL, and differs from
 * other pointers. Negative ids exceed this maximum. */
#define LWP_MAX UINT32_MAX

struct lwp *pmc_lwp(pid_t pid)
{
	return (struct lwp *)((uintptr_t)(uint32_t)pid << 1 | 1);
}

static int32_t pid_of(const struct lwp *l)
{
	uintptr_t number = (uintptr_t)l;

	return number % 2 == 1 && number <= LWP_MAX ? (int32_t)(number >> 1) : PMC_PID_NONE;
}

static struct pmc_call call_of(uint32_t function, int32_t pid, int ctr)
{
	struct pmc_call call = { .function = function, .pid = pid, .counter = ctr };
	return call;
}

/* The function's result, or a negative error number. */
static long carry_out(struct pmc_call *call)
{
	return kvmprof_carry_out(PMC_NODE, PMC_CALL, call);
}

/* Calls a function that returns an error number. */
static int error_of(struct pmc_call *call)
{
	long result = carry_out(call);

	return result < 0 ? (int)-result : 0;
}

/* Calls a function that returns whether something is true. */
static int is_so(struct pmc_call *call)
{
	return carry_out(call) > 0;
}

static int with_configuration(struct pmc_call *call, const struct pmc_counter_cfg *cfg)
{
	if (!cfg)
		return EFAULT;
	call->event = cfg->event_id;
	call->reset_value = cfg->reset_value;
	call->configuration_flags = cfg->flags;
	return error_of(call);
}

int pmc_get_num_counters(void)
{
	struct pmc_call call = call_of(PMC_NUM_COUNTERS, PMC_PID_CALLER, 0);
	long result = carry_out(&call);

	return result < 0 ? 0 : (int)result;
}

int pmc_get_counter_type(int ctr)
{
	struct pmc_call call = call_of(PMC_COUNTER_TYPE, PMC_PID_CALLER, ctr);
	long result = carry_out(&call);

	return result < 0 ? -1 : (int)result;
}

void pmc_save_context(struct lwp *l)
{
	struct pmc_call call = call_of(PMC_SAVE_CONTEXT, pid_of(l), 0);

	(void)carry_out(&call);
}

void pmc_restore_context(struct lwp *l)
{
	struct pmc_call call = call_of(PMC_RESTORE_CONTEXT, pid_of(l), 0);

	(void)carry_out(&call);
}

int pmc_enable_counter(struct lwp *l, int ctr)
{
	struct pmc_call call = call_of(PMC_ENABLE, pid_of(l), ctr);

	return error_of(&call);
}

int pmc_disable_counter(struct lwp *l, int ctr)
{
	struct pmc_call call = call_of(PMC_DISABLE, pid_of(l), ctr);

	return error_of(&call);
}

int pmc_counter_isrunning(struct lwp *l, int ctr)
{
	struct pmc_call call = call_of(PMC_IS_RUNNING, pid_of(l), ctr);

	return is_so(&call);
}

int pmc_counter_isconfigured(struct lwp *l, int ctr)
{
	struct pmc_call call = call_of(PMC_IS_CONFIGURED, pid_of(l), ctr);

	return is_so(&call);
}

int pmc_configure_counter(struct lwp *l, int ctr, struct pmc_counter_cfg *cfg)
{
	struct pmc_call call = call_of(PMC_CONFIGURE, pid_of(l), ctr);

	return with_configuration(&call, cfg);
}

int pmc_get_counter_value(struct lwp *l, int ctr, int flags, uint64_t *pval)
{
	struct pmc_call call = call_of(PMC_VALUE, l ? pid_of(l) : PMC_PID_KERNEL, ctr);
	int error;

	if (!pval)
		return EFAULT;
	call.flags = (uint32_t)flags;
	error = error_of(&call);
	if (!error)
		*pval = call.value;
	return error;
}

int pmc_accumulate(struct lwp *l_parent, struct lwp *l_exiting)
{
	struct pmc_call call = call_of(PMC_ACCUMULATE, pid_of(l_exiting), 0);

	call.parent = pid_of(l_parent);
	return error_of(&call);
}

int pmc_alloc_kernel_counter(int ctr, struct pmc_counter_cfg *cfg)
{
	struct pmc_call call = call_of(PMC_ALLOC_KERNEL, PMC_PID_CALLER, ctr);

	return with_configuration(&call, cfg);
}

int pmc_free_kernel_counter(int ctr)
{
	struct pmc_call call = call_of(PMC_FREE_KERNEL, PMC_PID_CALLER, ctr);

	return error_of(&call);
}

int pmc_start_profiling(int ctr, struct pmc_counter_cfg *cfg)
{
	struct pmc_call call = call_of(PMC_START_PROFILING, PMC_PID_CALLER, ctr);

	return with_configuration(&call, cfg);
}

int pmc_stop_profiling(int ctr)
{
	struct pmc_call call = call_of(PMC_STOP_PROFILING, PMC_PID_CALLER, ctr);

	return error_of(&call);
}

int PMC_ENABLED(struct lwp *l)
{
	struct pmc_call call = call_of(PMC_IS_ENABLED, pid_of(l), 0);

	return is_so(&call);
}
