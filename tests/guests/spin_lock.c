/* Two threads that fight for the spin lock of their process's signals (sighand_struct.siglock), for four seconds: whoever asks which signals are
 * pending takes it. */
#include <pthread.h>
#include <signal.h>
#include <time.h>

static double now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec + time.tv_nsec / 1e9;
}

static void *fight(void *until)
{
	sigset_t pending;

	do {
		for (int i = 0; i < 1000; i++)
			sigpending(&pending);
	} while (now() < *(double *)until);
	return NULL;
}

int main(void)
{
	double until = now() + 4;
	pthread_t other;

	if (pthread_create(&other, NULL, fight, &until) != 0)
		return 1;
	fight(&until);
	return pthread_join(other, NULL);
}
