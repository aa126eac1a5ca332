/*
 * Writes standard input to the parallel port at the given I/O address, as to a
 * printer that is always ready. The lab's kernels have no driver for it.
 */
#include <stdio.h>
#include <stdlib.h>
#include <sys/io.h>
#include <unistd.h>

/* The control register: the port is selected, and its printer not being reset. */
#define IDLE 0x0c
#define STROBE 0x01

static unsigned char bytes[1 << 16];

int main(int argc, char **argv)
{
	unsigned short data, control;
	ssize_t count;

	if (argc != 2)
		return 2;
	data = (unsigned short)strtoul(argv[1], NULL, 0);
	control = data + 2;
	if (ioperm(data, 3, 1) < 0) {
		perror("ioperm");
		return 1;
	}
	while ((count = read(STDIN_FILENO, bytes, sizeof(bytes))) > 0) {
		for (ssize_t at = 0; at < count; at++) {
			outb(bytes[at], data);
			outb(IDLE | STROBE, control);
			outb(IDLE, control);
		}
	}
	return count < 0;
}
