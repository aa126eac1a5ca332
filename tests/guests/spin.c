/* Busy in user mode until it is killed. Where it is linked says whose a program counter is. */

static volatile unsigned long rounds;

int main(void)
{
	for (;;)
		rounds++;
}
