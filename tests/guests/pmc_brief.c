/* Counts its own reads of a port by pmc(9). It is a program in C and in C++, and takes nothing but what the manual page and
 * pmc_lwp have. */

#include <stdio.h>
#include <string.h>
#include <sys/io.h>
#include <sys/pmc.h>

#define PORT 0x2e8

int main(int count, char **words)
{
	struct pmc_counter_cfg cfg;
	struct lwp *l = pmc_lwp(0);
	uint64_t value = 0;
	int error, i;

	memset(&cfg, 0, sizeof cfg);
	cfg.event_id = PMC_EVENT_PORT_READS;
	if (ioperm(PORT, 1, 1) != 0)
		return 1;
	error = pmc_configure_counter(l, PMC_EVENT_PORT_READS, &cfg);
	if (error == 0)
		error = pmc_enable_counter(l, PMC_EVENT_PORT_READS);
	for (i = 0; i < 21; i++)
		inb(PORT);
	if (error == 0)
		error = pmc_get_counter_value(l, PMC_EVENT_PORT_READS, 0, &value);
	printf("%s: error %d, enabled %d, value %lu\n", count == 2 ? words[1] : "brief", error, PMC_ENABLED(curlwp),
	       (unsigned long)value);
	return 0;
}
