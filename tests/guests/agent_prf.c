/* Uses /dev/prf and the prf of one CPU as a program would that was written against the manual page. */

#include "agent_checks.h"

#include <poll.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/uio.h>

#define PRF_GETSTATUS 0x4601
#define PRF_GETSIZE 0x4602
#define PRF_SETSTATE 0x4603
#define PRF_GETMAX 0x4604
#define ON 1
#define LOADED 2

/* More than a kernel's request has room for, many times over, and no multiple of it. */
#define ADDRESSES 65539
/* The kernel's text begins somewhere there, whatever its slide. */
#define TEXT 0xffffffff80000000

static int prf;
static uint64_t table[ADDRESSES];
static uint64_t contents[2 * ADDRESSES + 2];

static unsigned word(unsigned command)
{
	unsigned value = 0xdeadbeef;
	if (ioctl(prf, command, &value) != 0)
		stop("ioctl");
	return value;
}

static void state_is(const char *name, unsigned state, unsigned size)
{
	unsigned now = word(PRF_GETSTATUS), addresses = state & LOADED ? word(PRF_GETSIZE) : size;
	check(name, now == state && addresses == size, "state %u, %u addresses", now, addresses);
}

static void writes(const char *name, const void *data, size_t length)
{
	ssize_t count = write(prf, data, length);
	check(name, count == (ssize_t)length, "%zd, errno %d", count, errno);
}

static void numbers(void)
{
	struct stat all, first;
	int failed = stat("/dev/prf", &all) | stat("/dev/prf0", &first);
	check("minors", !failed && minor(all.st_rdev) == 255 && minor(first.st_rdev) == 0 &&
	      major(all.st_rdev) == major(first.st_rdev), "%u:%u and %u:%u", major(all.st_rdev),
	      minor(all.st_rdev), major(first.st_rdev), minor(first.st_rdev));
}

static void unloaded(void)
{
	state_is("nothing is loaded", 0, 0);
	fails("read without a table", read(prf, contents, sizeof contents), ENXIO);
	fails("small read without a table", read(prf, contents, 8), ENXIO);
	check("ON without a table has no effect", ioctl(prf, PRF_SETSTATE, 1) == 0, "errno %d", errno);
	state_is("it is still off", 0, 0);
	fails("unknown command", ioctl(prf, 0x4605, 0), EINVAL);
	fails("command of another device", ioctl(prf, 0x5001, 1), EINVAL);
	fails("PRF_GETSTATUS to NULL", ioctl(prf, PRF_GETSTATUS, NULL), EFAULT);
	fails("PRF_GETMAX to the edge of memory", ioctl(prf, PRF_GETMAX, edge_of_memory() - 2), EFAULT);
	unsigned most = word(PRF_GETMAX);
	check("PRF_GETMAX", most >= ADDRESSES, "%u", most);
}

static void loading(void)
{
	for (unsigned i = 1; i < ADDRESSES; i++)
		table[i] = TEXT + i * UINT64_C(256);
	writes("a small table", table, 3 * 8);
	state_is("the small table is loaded", LOADED, 3);
	writes("a table that just fills a fragment", table, 131072);
	state_is("that table is loaded", LOADED, 131072 / 8);
	writes("a large table", table, sizeof table);
	state_is("the large table is loaded", LOADED, ADDRESSES);

	static char unaligned[sizeof table + 1];
	memcpy(unaligned + 1, table, sizeof table);
	writes("a large table from an odd address", unaligned + 1, sizeof table);
	state_is("it is loaded too", LOADED, ADDRESSES);

	struct iovec pieces[3] = {
		{ table, 1000 * 8 }, { table + 1000, 50000 * 8 }, { table + 51000, (ADDRESSES - 51000) * 8 },
	};
	ssize_t count = writev(prf, pieces, 3);
	check("a large table in three pieces", count == sizeof table, "%zd, errno %d", count, errno);
	state_is("all three are loaded", LOADED, ADDRESSES);
}

static void refused(void)
{
	size_t most = (size_t)word(PRF_GETMAX) * 8;
	char *larger = mmap(NULL, most + (16 << 20), PROT_READ | PROT_WRITE,
			    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	fails("too few addresses", write(prf, table, 2 * 8), E2BIG);
	fails("a part of an address", write(prf, table, 3 * 8 + 1), E2BIG);
	fails("a part of an address, large", write(prf, table, sizeof table - 1), E2BIG);
	fails("one address too many", write(prf, larger, most + 8), ENOSPC);
	fails("many addresses too many", write(prf, larger, most + (8 << 20)), ENOSPC);
	char *edge = edge_of_memory();
	fails("a table behind the end of memory", write(prf, edge - 64, 128), EFAULT);
	fails("a large table behind the end of memory", write(prf, edge - 4096, sizeof table), EFAULT);
	state_is("the table before is still loaded", LOADED, ADDRESSES);
	munmap(larger, most + (16 << 20));

	check("ON", ioctl(prf, PRF_SETSTATE, 1) == 0, "errno %d", errno);
	state_is("it is on", ON | LOADED, ADDRESSES);
	fails("a table while it is on", write(prf, table, 3 * 8), EBUSY);
	fails("a large table while it is on", write(prf, table, sizeof table), EBUSY);
}

static uint64_t counted(void)
{
	uint64_t sum = 0;
	for (unsigned i = 0; i < ADDRESSES + 2; i++)
		sum += contents[ADDRESSES + i];
	return sum;
}

static void reading(void)
{
	struct pollfd poll_fd = { prf, POLLIN | POLLOUT, 0 };
	int ready = poll(&poll_fd, 1, -1);
	check("always ready", ready == 1 && poll_fd.revents == (POLLIN | POLLOUT), "%d, %#x", ready,
	      poll_fd.revents);
	uint64_t before = 0;
	for (int i = 0; i < 3; i++) {
		memset(contents, 0xff, sizeof contents);
		ssize_t count = read(prf, contents, sizeof contents);
		check("the whole is read at once", count == sizeof contents, "%zd, errno %d", count, errno);
		check("the addresses are those written", memcmp(contents, table, sizeof table) == 0, "no");
		uint64_t sum = counted();
		check("counters grow", sum >= before && sum < 1000000, "%llu after %llu",
		      (unsigned long long)sum, (unsigned long long)before);
		before = sum;
		while (i == 0 && counted() < 20) {
			nap(20);
			if (read(prf, contents, sizeof contents) != sizeof contents)
				stop("read again");
		}
	}
	char part[11];
	check("a read begins at the beginning", read(prf, part, sizeof part) == sizeof part &&
	      memcmp(part, table, sizeof part) == 0, "errno %d", errno);
	static char more[sizeof contents + 4096];
	ssize_t count = read(prf, more, sizeof more);
	check("a read ends at the last counter", count == sizeof contents, "%zd", count);
	count = read(prf, more, 200001);
	check("a read ends at any byte", count == 200001 && memcmp(more, table, 200001) == 0, "%zd", count);

	close(prf);
	prf = open("/dev/prf", O_RDWR);
	state_is("ON survives close", ON | LOADED, ADDRESSES);
	int second = open("/dev/prf", O_RDWR);
	check("it isn't exclusive", second >= 0, "errno %d", errno);
	close(second);
	check("OFF", ioctl(prf, PRF_SETSTATE, 2) == 0, "errno %d", errno);
	state_is("it is off", LOADED, ADDRESSES);
	uint64_t swap = table[40000];
	table[40000] = 1;
	fails("a table that isn't ascending", write(prf, table, sizeof table), EINVAL);
	table[40000] = swap;
	state_is("nothing is loaded after it", 0, 0);
}

int main(void)
{
	start();
	numbers();
	prf = open("/dev/prf", O_RDWR);
	if (prf < 0)
		stop("open");
	unloaded();
	loading();
	refused();
	reading();
	close(prf);
	prf = open("/dev/prf0", O_RDWR);
	check("the first CPU's opens", prf >= 0, "errno %d", errno);
	state_is("it has a state of its own", 0, 0);
	return finish("agent_prf");
}
