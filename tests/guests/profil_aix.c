/* profil of AIX in both forms, as its manual page has it. */

#include <errno.h>
#include <mon.h>

#include "agent_checks.h"
#include "profil_work.h"

#define COUNTS 256
#define MOST_RANGES 256

static HISTCOUNTER counts[COUNTS];

static struct prof range(uintptr_t low, uintptr_t high, HISTCOUNTER *buffer, int bytes, unsigned scale)
{
	struct prof prof = { (char *)low, (char *)high, buffer, bytes, scale };
	return prof;
}

static const struct prof end = { 0 };

static int one_buffer_on(void)
{
	return profil(counts, sizeof counts, code_start(), 0x4000);
}

static int one_buffer_off(void)
{
	return profil(counts, sizeof counts, 0, 1);
}

static int ranges_off(void)
{
	struct prof none = end;

	return profil(&none, -1, 0, 0);
}

static void with_one_buffer(struct result *result)
{
	if (one_buffer_on() != 0)
		_exit(1);
	result->between = 1;
	while (sum(counts, COUNTS) < ENOUGH)
		turn(result);
	result->between = 0;
	if (one_buffer_off() != 0)
		_exit(1);
	attribute(result, counts, COUNTS);
}

/* A range for each function; the scale of the second one is computed. */
static void with_ranges(struct result *result)
{
	int is_first = START(light) < START(heavy);
	uintptr_t low[2] = { is_first ? START(light) : START(heavy), is_first ? START(heavy) : START(light) };
	struct prof ranges[3] = {
		range(low[0], low[0] + 256, counts, 64, 0x4000),
		range(low[1], low[1] + 256, counts + 32, 64, -1),
		end,
	};

	if (profil(ranges, -1, 0, 0) != 0)
		_exit(1);
	result->between = 1;
	while (sum(counts, 64) < ENOUGH)
		turn(result);
	result->between = 0;
	if (ranges_off() != 0)
		_exit(1);
	result->light = sum(counts + (is_first ? 0 : 32), 32);
	result->heavy = sum(counts + (is_first ? 32 : 0), 32);
	result->other = sum(counts + 64, COUNTS - 64);
}

/* Works until there are so many counts more. */
static void until(long more)
{
	struct result result = { 0 };
	long enough = sum(counts, COUNTS) + more;

	while (sum(counts, COUNTS) < enough)
		turn(&result);
}

/* Counts while it works for a while. */
static long counted(void)
{
	struct result result = { 0 };
	long before = sum(counts, COUNTS);

	while (result.heavy_turns < 3000)
		turn(&result);
	return sum(counts, COUNTS) - before;
}

static void what_is_on_stays_on(void)
{
	static HISTCOUNTER other[COUNTS];

	check("on", one_buffer_on() == 0, "errno %d", errno);
	until(2);
	check("on while on returns 0", profil(other, sizeof other, code_start(), 0x4000) == 0, "errno %d", errno);
	until(3);
	check("on while on has no effect", sum(other, COUNTS) == 0, "%ld", sum(other, COUNTS));
	check("off by the other form returns 0", ranges_off() == 0, "errno %d", errno);
	until(3);
	check("off by the other form has no effect", 1, "it has");
	check("off", one_buffer_off() == 0, "errno %d", errno);
	long more = counted();
	check("it is off", more == 0, "%ld", more);
	check("off while off", one_buffer_off() == 0 && ranges_off() == 0, "errno %d", errno);
	struct prof ranges[2] = { range(code_start(), code_stop(), counts, sizeof counts, 0x4000), end };
	check("ranges on", profil(ranges, -1, 0, 0) == 0, "errno %d", errno);
	until(3);
	check("one buffer's off returns 0", one_buffer_off() == 0, "errno %d", errno);
	until(3);
	check("one buffer's off has no effect", 1, "it has");
	check("ranges off", ranges_off() == 0, "errno %d", errno);
	more = counted();
	check("ranges are off", more == 0, "%ld", more);
}

static void counts_stay_at_their_most(void)
{
	for (size_t i = 0; i < COUNTS; i++)
		counts[i] = 65535;
	/* All of the program is one count, which begins one below the most. */
	counts[0] = 65534;
	/* By a scale of 2 the highest byte is odd from 32768 bytes on: the functions are further below. */
	check("a core clock", profil(counts, 2, code_start(), 2) == 0, "errno %d", errno);
	struct result result = { 0 };
	while (((volatile HISTCOUNTER *)counts)[0] != 65535)
		turn(&result);
	for (result.heavy_turns = 0; result.heavy_turns < 3000;)
		turn(&result);
	check("a count stays at its most", counts[0] == 65535 && counts[1] == 65535, "%d", counts[0]);
	one_buffer_off();
	memset(counts, 0, sizeof counts);
}

static void errors_have_their_numbers(void)
{
	static const HISTCOUNTER constant[64];
	static struct prof ranges[MOST_RANGES + 2];
	HISTCOUNTER *memory = (HISTCOUNTER *)edge_of_memory();

	fails("no buffer", profil(NULL, 128, code_start(), 0x4000), EFAULT);
	fails("a constant", profil((void *)constant, sizeof constant, code_start(), 0x4000), EFAULT);
	fails("the end of memory", profil(memory - 10, 40, code_start(), 0x4000), EFAULT);
	check("up to the end of memory", profil(memory - 10, 20, code_start(), 0x4000) == 0, "errno %d", errno);
	one_buffer_off();
	check("no bytes", profil(NULL, 0, code_start(), 0x4000) == 0, "errno %d", errno);
	fails("no array", profil((struct prof *)16, -1, 0, 0), EFAULT);
	struct prof *at_edge = (struct prof *)edge_of_memory() - 1;
	*at_edge = range(code_start(), code_stop(), counts, 64, -1);
	fails("an array without an end", profil(at_edge, -1, 0, 0), EFAULT);
	*at_edge = end;
	check("an array at the edge", profil(at_edge, -1, 0, 0) == 0, "errno %d", errno);
	for (int i = 0; i <= MOST_RANGES; i++)
		ranges[i] = range(16 * i, 16 * i + 16, counts, 64, -1);
	fails("too many ranges", profil(ranges, -1, 0, 0), EINVAL);
	ranges[MOST_RANGES] = end;
	check("most ranges", profil(ranges, -1, 0, 0) == 0, "errno %d", errno);
	ranges_off();
	ranges[1].p_high = ranges[0].p_high;
	fails("ranges that don't ascend", profil(ranges, -1, 0, 0), EINVAL);
	ranges[1].p_high += 1;
	ranges[1].p_buff = (HISTCOUNTER *)constant;
	fails("a range with a constant", profil(ranges, -1, 0, 0), EFAULT);
	/* The errors have turned nothing on. */
	check("a call after errors", one_buffer_on() == 0, "errno %d", errno);
	until(3);
	one_buffer_off();
}

int main(void)
{
	start();
	print_shares("aix", with_one_buffer);
	print_shares("aix-ranges", with_ranges);
	what_is_on_stays_on();
	counts_stay_at_their_most();
	errors_have_their_numbers();
	return finish("profil_aix");
}
