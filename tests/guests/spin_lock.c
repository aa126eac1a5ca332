/* Two threads that fight for the spin lock of their process's signals (sighand_struct.siglock) until they are killed: whoever asks which signals are
 * pending takes it. */
#include <pthread.h>
#include <signal.h>

static void *fight(void *unused)
{
	sigset_t pending;

	for (;;)
		sigpending(&pending);
	return unused;
}

int main(void)
{
	pthread_t other;

	if (pthread_create(&other, NULL, fight, NULL) != 0)
		return 1;
	fight(NULL);
}
