/* Two threads that fight for the spin lock of a file's record locks (file_lock_context.flc_lock) until they are killed: whoever asks for a
 * lock in the way takes it, and looks at all there are. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>

/* The spin lock is held for as long as it takes to look at so many. */
enum { LOCKS = 2000 };

static int file;

static void *fight(void *unused)
{
	for (;;) {
		struct flock lock = { .l_type = F_WRLCK, .l_len = 1 };

		fcntl(file, F_GETLK, &lock);
	}
	return unused;
}

int main(void)
{
	pthread_t other;

	file = open("/locked", O_RDWR | O_CREAT, 0600);
	if (file < 0)
		return 1;
	for (int i = 0; i < LOCKS; i++) {
		struct flock lock = { .l_type = F_RDLCK, .l_start = 2 * i, .l_len = 1 };

		if (fcntl(file, F_SETLK, &lock) != 0)
			return 1;
	}
	if (pthread_create(&other, NULL, fight, NULL) != 0)
		return 1;
	fight(NULL);
}
