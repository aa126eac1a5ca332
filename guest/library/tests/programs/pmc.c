/* Uses everything that <sys/pmc.h> has, on a machine without /dev/pmc. With MACHINE <machine/pmc.h> comes first. */

#ifdef MACHINE
#include <machine/pmc.h>
#endif
#include <errno.h>
#include <stdio.h>
#include <sys/pmc.h>

/* The types of the manual page. */
static int (*const num_counters)(void) = pmc_get_num_counters;
static int (*const counter_type)(int ctr) = pmc_get_counter_type;
static void (*const contexts[])(struct lwp *l) = { pmc_save_context, pmc_restore_context };
static int (*const of_counters[])(struct lwp *l, int ctr) = { pmc_enable_counter, pmc_disable_counter,
	                                                      pmc_counter_isrunning, pmc_counter_isconfigured };
static int (*const configure)(struct lwp *l, int ctr, struct pmc_counter_cfg *cfg) = pmc_configure_counter;
static int (*const get_value)(struct lwp *l, int ctr, int flags, uint64_t *pval) = pmc_get_counter_value;
static int (*const accumulate)(struct lwp *l_parent, struct lwp *l_exiting) = pmc_accumulate;
static int (*const of_kernel[])(int ctr, struct pmc_counter_cfg *cfg) = { pmc_alloc_kernel_counter,
	                                                                 pmc_start_profiling };
static int (*const ends_of_kernel[])(int ctr) = { pmc_free_kernel_counter, pmc_stop_profiling };
static int (*const enabled)(struct lwp *l) = PMC_ENABLED;

int main(void)
{
	struct pmc_counter_cfg cfg = { PMC_EVENT_CPU_TIME, 0, 0 };
	pmc_evid_t event = cfg.event_id;
	pmc_ctr_t reset_value = cfg.reset_value;
	uint64_t value = 5;
	int at;

	errno = 99;
	printf("%d %d %d\n", num_counters(), counter_type(-1), counter_type(0));
	for (at = 0; at < 2; at++)
		contexts[at](curlwp);
	for (at = 0; at < 4; at++)
		printf("%d ", of_counters[at](curlwp, 0));
	printf("\n%d %d", configure(curlwp, 0, &cfg), configure(curlwp, 0, NULL));
	printf("\n%d %d", get_value(curlwp, 0, PMC_VALUE_FLAGS_CHILDREN, &value), get_value(NULL, 0, 0, NULL));
	printf("\n%d\n", accumulate(curlwp, pmc_lwp(1)));
	for (at = 0; at < 2; at++)
		printf("%d %d ", of_kernel[at](0, &cfg), of_kernel[at](0, NULL));
	for (at = 0; at < 2; at++)
		printf("%d ", ends_of_kernel[at](0));
	printf("\n%d\n", enabled(curlwp));
	printf("value %d, errno %d, cfg %d\n", (int)value, errno, event == cfg.event_id && reset_value == cfg.reset_value);
	printf("%d %d\n", pmc_lwp(0) == NULL, curlwp == pmc_lwp(0) && pmc_lwp(1) != pmc_lwp(0));
	return 0;
}
