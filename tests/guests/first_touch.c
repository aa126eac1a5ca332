/* Writes to COUNT pages of reserved memory, from page FIRST of it on, and then to all of them again. There is a pause after some, so that whoever watches keeps up. */

#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

enum { MEMORY = 0x18000000, PAGE = 4096, SOME = 16, PAUSE_US = 5000 };

__attribute__((noinline)) static void write_pages(volatile char *pages, int count)
{
	for (int page = 0; page < count; page++) {
		pages[page * PAGE] = 1;
		if (page % SOME == SOME - 1)
			usleep(PAUSE_US);
	}
}

int main(int count, char **words)
{
	if (count != 3)
		return 1;
	int first = atoi(words[1]);
	int pages = atoi(words[2]);
	int memory = open("/dev/mem", O_RDWR);
	char *mapped = mmap(NULL, (size_t)pages * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, memory,
			    MEMORY + (off_t)first * PAGE);
	if (mapped == MAP_FAILED)
		return 1;
	write_pages(mapped, pages);
	write_pages(mapped, pages);
	return 0;
}
