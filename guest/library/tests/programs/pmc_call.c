/* Prints the bytes of a call of pmc with a value in each field, and the numbers of its functions. */

#include <stdio.h>
#include <string.h>

#include "pmc_call.h"

int main(void)
{
	struct pmc_call call = {
		.function = PMC_IS_ENABLED,
		.flags = 1,
		.pid = -2,
		.counter = -3,
		.parent = 0x01020304,
		.event = 0x11121314,
		.reset_value = 0x2122232425262728,
		.configuration_flags = 0x31323334,
		.time = 0x4142434445464748,
		.value = 0x5152535455565758,
	};
	const int functions[] = {
		PMC_NUM_COUNTERS,  PMC_COUNTER_TYPE, PMC_SAVE_CONTEXT, PMC_RESTORE_CONTEXT, PMC_ENABLE,      PMC_DISABLE,
		PMC_IS_RUNNING,    PMC_IS_CONFIGURED, PMC_CONFIGURE,   PMC_VALUE,           PMC_ACCUMULATE,  PMC_ALLOC_KERNEL,
		PMC_FREE_KERNEL,   PMC_START_PROFILING, PMC_STOP_PROFILING, PMC_IS_ENABLED,
	};
	unsigned char bytes[sizeof call];

	memcpy(bytes, &call, sizeof call);
	for (unsigned i = 0; i < sizeof call; i++)
		printf("%02x", bytes[i]);
	printf("\n");
	for (unsigned i = 0; i < sizeof functions / sizeof *functions; i++)
		printf("%d ", functions[i]);
	printf("%#x %s %d\n", PMC_CALL, PMC_NODE, PMC_PID_KERNEL);
	return 0;
}
