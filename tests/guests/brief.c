/* Busy in user mode for a while, then gone. */

static volatile unsigned long rounds;

int main(void)
{
	while (rounds < 8000000)
		rounds++;
	return 0;
}
