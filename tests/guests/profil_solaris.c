/* profil and pcsample of Solaris, as their manual page has them. */

#include <errno.h>
#include <pcsample.h>
#include <profil.h>

#include "agent_checks.h"
#include "profil_work.h"

#define COUNTS 256

static unsigned short counts[COUNTS];
static uintptr_t samples[ENOUGH];

/* A count for each 8 bytes of code. */
static void start_profil(void)
{
	profil(counts, sizeof counts, code_start(), 0x4000);
}

static void with_profil(struct result *result)
{
	start_profil();
	result->between = 1;
	while (sum(counts, COUNTS) < ENOUGH)
		turn(result);
	result->between = 0;
	profil(counts, 0, 0, 0);
	attribute(result, counts, COUNTS);
}

static void with_pcsample(struct result *result)
{
	volatile uintptr_t *last = &samples[ENOUGH - 1];

	pcsample(samples, ENOUGH);
	result->between = 1;
	while (!*last)
		turn(result);
	result->between = 0;
	if (pcsample(NULL, 0) != ENOUGH)
		_exit(1);
	for (size_t i = 0; i < ENOUGH; i++) {
		if (IS_IN(light, samples[i]))
			result->light++;
		else if (IS_IN(heavy, samples[i]))
			result->heavy++;
		else
			result->other++;
	}
}

/* What counts system calls counts one. */
static void with_a_call(struct result *result)
{
	result->between = 1;
	getppid();
	result->between = 0;
}

static void samples_until(size_t count)
{
	struct result result = { 0 };

	while (!((volatile uintptr_t *)samples)[count - 1])
		turn(&result);
}

/* Programs with such buffers go on, though nothing is stored. */
static void wrong_buffers_harm_nobody(void)
{
	static const unsigned short constant[64];
	char *gone = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	unsigned short *wrong[] = { NULL, (unsigned short *)constant, (unsigned short *)gone,
		                    (unsigned short *)code_start(), (unsigned short *)-4096 };

	munmap(gone, 4096);
	for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
		errno = 77;
		profil(wrong[i], 128, code_start(), 2);
		check("profil leaves errno", errno == 77, "%d", errno);
		pcsample((uintptr_t *)wrong[i], 0);
		check("pcsample takes any array", pcsample((uintptr_t *)wrong[i], 10) == 0, "errno %d", errno);
		if (fork() == 0)
			_exit(0);
		wait(NULL);
	}
	memset(samples, 0, sizeof samples);
	check("a right one is right after them", pcsample(samples, ENOUGH) == 0, "errno %d", errno);
	samples_until(3);
	pcsample(NULL, 0);
	/* The page that the buffer was on goes, while it is in use. */
	uintptr_t *lost = (uintptr_t *)mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	pcsample(lost, 512);
	munmap(lost, 4096);
	if (fork() == 0)
		_exit(0);
	check("a fork without the array", status_of(-1) == 0, "it ended");
	struct result result = { 0 };
	while (result.heavy_turns < 1000)
		turn(&result);
	check("its count is told", pcsample(NULL, 0) < 512, "errno %d", errno);
}

/* At an address that nothing is aligned to, and across pages. */
static void buffers_lie_anywhere(void)
{
	char *pages = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	uintptr_t sample = 0;
	struct result result = { 0 };

	check("an odd address across pages", pcsample((uintptr_t *)(pages + 4096 - 3), 1) == 0, "errno %d", errno);
	while (!sample) {
		turn(&result);
		memcpy(&sample, pages + 4096 - 3, sizeof sample);
	}
	check("it is a program counter", pcsample(NULL, 0) == 1 && sample > 0x1000 && sample < 1ul << 47, "%lx", sample);
	uintptr_t on_the_stack[3] = { 0 };
	pcsample(on_the_stack, 3);
	while (!((volatile uintptr_t *)on_the_stack)[2])
		turn(&result);
	check("the stack", pcsample(NULL, 0) == 3, "errno %d", errno);
}

/* Samples are stored there until there are so many. */
static void sample_into(uintptr_t *array, long count)
{
	volatile uintptr_t *last = &array[count - 1];
	struct result result = { 0 };

	pcsample(array, count);
	while (!*last)
		turn(&result);
	pcsample(NULL, 0);
}

/* What is stored is the file's, as if the process had stored it. */
static void a_file_gets_what_is_stored(void)
{
	int file = open("/samples", O_RDWR | O_CREAT | O_TRUNC, 0600);

	if (file < 0 || ftruncate(file, 4096))
		stop("a file");
	uintptr_t *mapped = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	if (mapped == MAP_FAILED)
		stop("a file mapping");
	sample_into(mapped, 5);
	uintptr_t in_file[5] = { 0 }, seen[5];
	memcpy(seen, mapped, sizeof seen);
	munmap(mapped, 4096);
	ssize_t length = pread(file, in_file, sizeof in_file, 0);
	check("a file mapping", length == sizeof in_file && in_file[4] && memcmp(in_file, seen, sizeof seen) == 0, "%zd bytes",
	      length);
	close(file);
}

/* One entry of the page tables maps all of it. */
static void huge_pages_are_stored_into(void)
{
	const size_t length = 2 << 20, count = 5;
	uintptr_t *page = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, -1, 0);

	if (page == MAP_FAILED)
		stop("a huge page");
	uintptr_t *end = page + length / sizeof *page, *array = end - count;
	size_t others = 0;

	*page = 0; /* It is there from the first store on. */
	sample_into(array, count);
	for (const uintptr_t *word = page; word < array; word++)
		others += *word != 0;
	check("a huge page", array[0] && end[-1] && !others, "%zu words besides", others);
	munmap(page, length);
}

static volatile long in_handler = -1;

static void call_in_handler(int signal)
{
	(void)signal;
	in_handler = pcsample(samples, ENOUGH);
}

/* A fast timer interrupts whatever can be interrupted. */
static void signals_interrupt_no_call(void)
{
	struct sigaction action = { .sa_handler = call_in_handler };
	long failed = 0;

	for (int i = 0; i < 25; i++) {
		ring_after(1);
		failed += pcsample(samples, ENOUGH) < 0;
		failed += pcsample(NULL, 0) < 0;
		be_quiet();
	}
	check("no call is interrupted", failed == 0, "%ld are", failed);
	sigaction(SIGUSR1, &action, NULL);
	raise(SIGUSR1);
	check("a handler may call it", in_handler == 0, "%ld", in_handler);
	memset(samples, 0, sizeof samples);
	pcsample(samples, ENOUGH);
	samples_until(2);
	raise(SIGUSR1);
	check("its call counts", in_handler >= 2, "%ld", in_handler);
	pcsample(NULL, 0);
}

int main(int count, char **words)
{
	/* Where it can't be had. */
	if (count == 2) {
		long result = pcsample(samples, ENOUGH);

		start_profil();
		printf("%s: errno %d\n", words[1], result == -1 ? errno : 0);
		return 0;
	}
	start();
	print_shares("control", with_a_call);
	print_shares("profil", with_profil);
	print_shares("pcsample", with_pcsample);
	wrong_buffers_harm_nobody();
	buffers_lie_anywhere();
	a_file_gets_what_is_stored();
	huge_pages_are_stored_into();
	signals_interrupt_no_call();
	return finish("profil_solaris");
}
