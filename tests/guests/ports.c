/* Writes to ports that no device has: COUNT times to one, by one instruction, or to SPAN ports, each by an instruction of its own. With a second word it asks the processor
   what it is COUNT times instead, slowly. */

#include <stdlib.h>
#include <string.h>
#include <sys/io.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PORT = 0x2345, FIRST = 0x2000, SPAN = 20000, LENGTH = 8 };

/* out %al, (%dx); ret */
static const unsigned char code[] = { 0xee, 0xc3 };

__attribute__((noinline)) static void write_port(unsigned short port)
{
	__asm__ volatile("outb %%al, %%dx" : : "a"(0), "d"(port));
}

__attribute__((noinline)) static void ask_processor(void)
{
	unsigned int a = 0, b, c, d;
	__asm__ volatile("cpuid" : "+a"(a), "=b"(b), "=c"(c), "=d"(d));
}

static int write_many(void)
{
	unsigned char *copies = mmap(NULL, SPAN * LENGTH, PROT_READ | PROT_WRITE | PROT_EXEC,
				     MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (copies == MAP_FAILED)
		return 1;
	for (int port = 0; port < SPAN; port++) {
		unsigned char *copy = copies + port * LENGTH;
		memcpy(copy, code, sizeof(code));
		__asm__ volatile("call *%2" : : "a"(0), "d"(FIRST + port), "r"(copy) : "memory");
	}
	return 0;
}

int main(int count, char **words)
{
	if (iopl(3))
		return 1;
	if (count < 2)
		return write_many();
	for (int left = atoi(words[1]); left > 0; left--) {
		if (count < 3) {
			write_port(PORT);
			continue;
		}
		ask_processor();
		usleep(10000);
	}
	return 0;
}
