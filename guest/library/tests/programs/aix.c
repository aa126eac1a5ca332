/* Uses both forms of AIX's profil, on a machine without /dev/profil. */

#include <errno.h>
#include <mon.h>
#include <stdio.h>
#include <unistd.h>

static HISTCOUNTER counts[64];

static void work(void)
{
}

static void print(const char *name, int result)
{
	printf("%s %d %d\n", name, result, errno);
	errno = 0;
}

int main(void)
{
	struct prof ranges[2] = { { 0, 0, 0, 0, 0 }, { 0, 0, 0, 0, 0 } };

	ranges[0].p_low = (char *)(unsigned long)work;
	ranges[0].p_high = ranges[0].p_low + 256;
	ranges[0].p_buff = counts;
	ranges[0].p_bufsize = sizeof counts;
	ranges[0].p_scale = -1;
	print("one buffer", profil(counts, sizeof counts, (unsigned long)work, 0x7fff));
	print("ranges", profil(ranges, -1, 0, 0));
	/* The library doesn't read it. */
	print("no array", profil((struct prof *)8, -1, 0, 0));
	printf("size %zu\n", sizeof(struct prof));
	return 0;
}
