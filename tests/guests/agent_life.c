/* Holds /dev/pcs while things happen to pcsd.
 *
 *   agent_life exec COMMAND...   has samples gathered, and runs the command with pcs as its standard input
 *   agent_life lost              waits in a read until pcsd or its port go, then tries what is open
 */

#include "agent_checks.h"

#include <poll.h>

#define PROF_ALL 0x5004
#define PCS_GETHZ 0x5084
#define PRF_GETMAX 0x4604

static int is_lost(long result)
{
	return result == -1 && (errno == EIO || errno == ENOTCONN || errno == ECONNABORTED);
}

static int lost(void)
{
	char buffer[1024];
	unsigned most;
	int pcs = open("/dev/pcs", O_RDONLY), prf = open("/dev/prf", O_RDWR);
	if (pcs < 0 || prf < 0)
		stop("open");
	puts("holding");
	fflush(stdout);
	long result = read(pcs, buffer, sizeof buffer);
	check("a blocked read ends", is_lost(result), "%ld, errno %d", result, errno);
	result = read(pcs, buffer, sizeof buffer);
	check("reads fail from then on", is_lost(result), "%ld, errno %d", result, errno);
	result = ioctl(pcs, PCS_GETHZ, 0);
	check("ioctls fail from then on", is_lost(result), "%ld, errno %d", result, errno);
	result = ioctl(prf, PRF_GETMAX, &most);
	check("so do prf's", is_lost(result), "%ld, errno %d", result, errno);
	struct pollfd poll_fd = { pcs, POLLIN, 0 };
	/* Without a limit: a guest that hangs is ended for its silence. */
	result = poll(&poll_fd, 1, -1);
	check("poll tells of it", result == 1 && poll_fd.revents & POLLERR, "%ld, revents %#x", result,
	      poll_fd.revents);
	close(pcs);
	close(prf);
	return finish("agent_life");
}

int main(int count, char **words)
{
	start();
	if (count == 2 && strcmp(words[1], "lost") == 0)
		return lost();
	int pcs = open("/dev/pcs", O_RDONLY);
	if (count < 3 || pcs < 0 || ioctl(pcs, PROF_ALL, 0) != 0)
		stop("start");
	dup2(pcs, 0);
	close(pcs);
	execvp(words[2], words + 2);
	stop(words[2]);
}
