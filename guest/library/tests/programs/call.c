/* Prints the bytes of a call with a value in each field. */

#include <stdio.h>
#include <string.h>

#include "call.h"

int main(void)
{
	struct call call = {
		.function = PCSAMPLE,
		.flags = EVERY_TICK,
		.pid = -2,
		.ranges = 3,
		.buffer = 0x0102030405060708,
		.size = 0x1112131415161718,
		.offset = 0x2122232425262728,
		.scale = 0x31323334,
		.time = 0x4142434445464748,
	};
	unsigned char bytes[sizeof call];

	memcpy(call.program, "0123456789abcdef", sizeof call.program);
	memcpy(bytes, &call, sizeof call);
	for (unsigned i = 0; i < sizeof call; i++)
		printf("%02x", bytes[i]);
	printf("\n%d %d %d %d %#x %s\n", SOLARIS_PROFIL, AIX_PROFIL, AIX_RANGES, PCSAMPLE, PROFIL_CALL, PROFIL_NODE);
	return 0;
}
