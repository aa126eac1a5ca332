/* Uses /dev/pcs as a program would that was written against the manual page. */

#define _GNU_SOURCE
#include "agent_checks.h"

#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/select.h>

#define BUF_INCR 0x5001
#define PROF_KERNEL 0x5002
#define PROF_ALL 0x5004
#define PROF_GROUP 0x5008
#define PROF_LIST 0x5010
#define PCS_SETFORMAT 0x5082
#define PCS_GETHZ 0x5084
#define PCS_STOP 0x5086
#define PCS_GETSTAT 0x5087
#define USER 2

#define NODE "/dev/pcs"
#define BSIZE 1024
/* For what has to come some time: a guest in which it never does is ended for its silence. */
#define NO_LIMIT (-1)

static int open_pcs(int flags)
{
	int fd = open(NODE, O_RDONLY | flags);
	if (fd < 0)
		stop("open");
	return fd;
}

static void opening(void)
{
	int fd = open_pcs(0);
	fails("second open", open(NODE, O_RDONLY), EBUSY);
	pid_t child = fork();
	if (child == 0) {
		int second = open(NODE, O_RDONLY);
		_exit(second < 0 && errno == EBUSY ? 0 : 1);
	}
	check("second open of another process", status_of(child) == 0, "not EBUSY");
	close(fd);
	fd = open(NODE, O_RDONLY);
	check("open after close", fd >= 0, "errno %d", errno);
	close(fd);
}

static void integers(void)
{
	int fd = open_pcs(0);
	fails("unknown command", ioctl(fd, 0x50ff, 0), EINVAL);
	fails("command of another device", ioctl(fd, 0x4601, 0), EINVAL);
	fails("BUF_INCR -1", ioctl(fd, BUF_INCR, -1), EINVAL);
	fails("BUF_INCR -1 as a long", ioctl(fd, BUF_INCR, -1L), EINVAL);
	fails("BUF_INCR 0", ioctl(fd, BUF_INCR, 0), EINVAL);
	fails("BUF_INCR past the limit", ioctl(fd, BUF_INCR, 8), EINVAL);
	check("BUF_INCR to the limit", ioctl(fd, BUF_INCR, 7) == 0, "errno %d", errno);
	fails("BUF_INCR beyond the limit", ioctl(fd, BUF_INCR, 1), EINVAL);
	int hz = ioctl(fd, PCS_GETHZ, 0);
	check("PCS_GETHZ returns its value", hz == 100, "%d", hz);
	fails("PROF_GROUP -1", ioctl(fd, PROF_GROUP, -1), EINVAL);
	/* The group of what an init without a session starts, as this one has none. */
	check("PROF_GROUP of its own", ioctl(fd, PROF_GROUP, getpgrp()) == 0, "%d: errno %d", getpgrp(), errno);
	check("PROF_GROUP 0", ioctl(fd, PROF_GROUP, 0) == 0, "errno %d", errno);
	if (setpgid(0, 0) != 0)
		stop("setpgid");
	check("PROF_GROUP", ioctl(fd, PROF_GROUP, getpgrp()) == 0, "errno %d", errno);
	fails("PCS_SETFORMAT after PROF", ioctl(fd, PCS_SETFORMAT, 1), EBUSY);
	close(fd);
}

static void lists(void)
{
	int fd = open_pcs(0);
	int list[7] = { 5, 1, 2, 3, 4, 5, 6 };
	check("PROF_LIST of 5", ioctl(fd, PROF_LIST, list) == 0, "errno %d", errno);
	static const int bad[] = { 6, 0, -1, 0x7fffffff, (int)0x80000000 };
	for (unsigned i = 0; i < sizeof bad / sizeof *bad; i++) {
		char name[40];
		snprintf(name, sizeof name, "PROF_LIST of %d", bad[i]);
		list[0] = bad[i];
		fails(name, ioctl(fd, PROF_LIST, list), EINVAL);
	}
	static const int none[] = { 0, -1, (int)0x80000000 };
	for (unsigned i = 0; i < sizeof none / sizeof *none; i++) {
		char name[40];
		snprintf(name, sizeof name, "PROF_LIST with pid %d", none[i]);
		int pids[] = { 2, 1, none[i] };
		fails(name, ioctl(fd, PROF_LIST, pids), EINVAL);
	}
	fails("PROF_LIST of NULL", ioctl(fd, PROF_LIST, NULL), EFAULT);
	fails("PROF_LIST of 1", ioctl(fd, PROF_LIST, 1), EFAULT);
	char *edge = edge_of_memory();
	int *last = (int *)(edge - sizeof(int));
	*last = 1;
	fails("PROF_LIST with no room for its list", ioctl(fd, PROF_LIST, last), EFAULT);
	*last = 6;
	fails("PROF_LIST of 6 with no room for it", ioctl(fd, PROF_LIST, last), EINVAL);
	fails("PROF_LIST with no room for its count", ioctl(fd, PROF_LIST, edge - 2), EFAULT);
	last[-1] = 1;
	check("PROF_LIST at the end of memory", ioctl(fd, PROF_LIST, last - 1) == 0, "errno %d", errno);
	close(fd);
}

static unsigned unused_of(const unsigned char *buffer)
{
	return buffer[0] | buffer[1] << 8;
}

/* Selects by its own number the process that does so, in a namespace where that is 1. */
static int select_oneself(int fd, int command)
{
	int list[] = { 2, getpid(), 4242 };
	if (getpid() != 1 || setpgid(0, 0) != 0)
		return 2;
	if (ioctl(fd, PROF_LIST, list) != -1 || errno != ESRCH)
		return 3;
	if (ioctl(fd, PROF_GROUP, 4242) != -1 || errno != ESRCH)
		return 4;
	list[0] = 1;
	long argument = command == PROF_LIST ? (long)list : getpgrp();
	return ioctl(fd, command, argument) == 0 ? 0 : 5;
}

static pid_t start_in_namespace(int fd, int command, int answers)
{
	pid_t child = fork();
	if (child != 0)
		return child;
	if (unshare(CLONE_NEWPID) != 0)
		_exit(1);
	child = fork();
	if (child != 0)
		_exit(status_of(child) == SIGKILL ? 0 : 1);
	int answer = select_oneself(fd, command);
	write(answers, &answer, sizeof answer);
	for (;;)
		;
}

/* The only child of a process. It takes a kernel with CONFIG_PROC_CHILDREN. */
static pid_t child_of(pid_t parent)
{
	char name[60];
	int child = 0;
	snprintf(name, sizeof name, "/proc/%d/task/%d/children", parent, parent);
	FILE *file = fopen(name, "r");
	if (file == NULL || fscanf(file, "%d", &child) != 1 || child <= 0)
		stop("children of a process");
	fclose(file);
	return child;
}

static void in_namespace(const char *name, int command)
{
	unsigned char buffer[BSIZE];
	int answers[2], answer = 0, found = 0, others = 0;
	if (pipe(answers) != 0)
		stop("pipe");
	int fd = open_pcs(0);
	pid_t holder = start_in_namespace(fd, command, answers[1]);
	if (read(answers[0], &answer, sizeof answer) != sizeof answer)
		stop("read of the pipe");
	check(name, answer == 0, "%d", answer);
	pid_t selected = child_of(holder);
	while (answer == 0 && found < 3 && read(fd, buffer, sizeof buffer) == sizeof buffer)
		for (unsigned at = 8; at + 16 <= BSIZE - unused_of(buffer); at += 16) {
			int pid;
			memcpy(&pid, buffer + at + 4, sizeof pid);
			if (buffer[at] == USER)
				*(pid == selected ? &found : &others) += 1;
		}
	check("records have the number outside", found >= 3 && others == 0, "%d, and %d of others than %d",
	      found, others, selected);
	close(fd);
	kill(selected, SIGKILL);
	check("it ran until then", status_of(holder) == 0, "it didn't");
	close(answers[0]);
	close(answers[1]);
}

static void accounts(void)
{
	int fd = open_pcs(0);
	unsigned char status[88 + 8];
	memset(status, 0xa5, sizeof status);
	check("PCS_GETSTAT", ioctl(fd, PCS_GETSTAT, status) == 0, "errno %d", errno);
	unsigned hz;
	memcpy(&hz, status + 64, 4);
	check("PCS_GETSTAT tells the rate", hz == 100, "%u", hz);
	check("PCS_GETSTAT stores no more", status[88] == 0xa5 && status[95] == 0xa5, "it does");
	fails("PCS_GETSTAT to NULL", ioctl(fd, PCS_GETSTAT, NULL), EFAULT);
	fails("PCS_GETSTAT to read-only memory", ioctl(fd, PCS_GETSTAT, "constant"), EFAULT);
	fails("PCS_GETSTAT with too little room", ioctl(fd, PCS_GETSTAT, edge_of_memory() - 80), EFAULT);
	close(fd);
}

static void without_waiting(void)
{
	char buffer[BSIZE];
	int fd = open_pcs(O_NONBLOCK);
	fails("read of an empty device", read(fd, buffer, sizeof buffer), EAGAIN);
	close(fd);
	fd = open_pcs(0);
	fcntl(fd, F_SETFL, O_NONBLOCK);
	fails("read after fcntl", read(fd, buffer, sizeof buffer), EAGAIN);
	struct pollfd poll_fd = { fd, POLLIN, 0 };
	check("poll of an empty device", poll(&poll_fd, 1, 0) == 0, "revents %#x", poll_fd.revents);
	check("poll that waits in vain", poll(&poll_fd, 1, 100) == 0, "revents %#x", poll_fd.revents);
	fcntl(fd, F_SETFL, 0);
	ring_after(200);
	fails("read with a signal", read(fd, buffer, sizeof buffer), EINTR);
	be_quiet();
	fcntl(fd, F_SETFL, O_NONBLOCK);
	fails("read after the signal", read(fd, buffer, sizeof buffer), EAGAIN);
	ring_after(200);
	fails("poll with a signal", poll(&poll_fd, 1, NO_LIMIT), EINTR);
	be_quiet();
	close(fd);
	fd = open(NODE, O_RDWR);
	check("open for writing", fd >= 0, "errno %d", errno);
	fails("write", write(fd, buffer, 8), EBADF);
	close(fd);
}

/* Has buffers fill: an idle guest gives a record a second. */
static pid_t start_hog(void)
{
	pid_t child = fork();
	if (child == 0)
		for (;;)
			;
	return child;
}

static void reading(void)
{
	unsigned char buffer[3 * BSIZE];
	pid_t hog = start_hog();
	int fd = open_pcs(0);
	check("PROF_ALL", ioctl(fd, PROF_ALL, 0) == 0, "errno %d", errno);
	struct pollfd poll_fd = { fd, POLLIN, 0 };
	int ready = poll(&poll_fd, 1, NO_LIMIT);
	check("poll until there is something", ready == 1 && poll_fd.revents == POLLIN,
	      "%d, revents %#x", ready, poll_fd.revents);
	fd_set set;
	FD_ZERO(&set);
	FD_SET(fd, &set);
	check("select", select(fd + 1, &set, NULL, NULL, NULL) == 1, "errno %d", errno);

	static const int sizes[] = { 1, 7, 500, 516, 1000, 24 };
	int total = 0;
	for (unsigned i = 0; i < sizeof sizes / sizeof *sizes; i++)
		for (int done = 0; done < sizes[i];) {
			ssize_t count = read(fd, buffer + total, sizes[i] - done);
			if (count <= 0)
				stop("read");
			done += count;
			total += count;
		}
	check("reads of odd sizes are whole buffers", total == 2 * BSIZE && unused_of(buffer) < 12 &&
	      unused_of(buffer + BSIZE) < 12, "%d bytes, %u and %u unused", total, unused_of(buffer),
	      unused_of(buffer + BSIZE));
	int type = buffer[8];
	check("records have types", type >= 1 && type <= 10, "%d", type);

	int queue = epoll_create1(0);
	struct epoll_event event = { .events = EPOLLIN };
	epoll_ctl(queue, EPOLL_CTL_ADD, fd, &event);
	fcntl(fd, F_SETFL, O_NONBLOCK);
	while (read(fd, buffer, sizeof buffer) > 0)
		;
	check("read until nothing is left", errno == EAGAIN, "errno %d", errno);
	check("epoll until there is something", epoll_wait(queue, &event, 1, NO_LIMIT) == 1, "errno %d", errno);
	check("read after epoll", read(fd, buffer, sizeof buffer) > 0, "errno %d", errno);
	close(queue);

	/* Each time only once for what has come, as mio and tokio wait. */
	queue = epoll_create1(0);
	event.events = EPOLLIN | EPOLLET;
	epoll_ctl(queue, EPOLL_CTL_ADD, fd, &event);
	int edges = 0;
	while (edges < 3 && epoll_wait(queue, &event, 1, NO_LIMIT) == 1) {
		while (read(fd, buffer, sizeof buffer) > 0)
			;
		edges++;
	}
	check("edge-triggered epoll", edges == 3 && errno == EAGAIN, "%d times, errno %d", edges, errno);
	close(queue);
	fcntl(fd, F_SETFL, 0);
	static unsigned char large[1 << 20];
	ssize_t count = read(fd, large, sizeof large);
	check("a large read doesn't wait to be filled", count > 0 && count % BSIZE == 0, "%zd", count);

	check("PCS_STOP", ioctl(fd, PCS_STOP, 0) == 0, "errno %d", errno);
	do
		count = read(fd, large, 1000);
	while (count > 0);
	check("end of file after PCS_STOP", count == 0, "errno %d", errno);
	check("poll at the end", poll(&poll_fd, 1, NO_LIMIT) == 1, "errno %d", errno);
	close(fd);
	kill(hog, SIGKILL);
	status_of(hog);
}

static void *read_all(void *fd)
{
	char buffer[BSIZE];
	return (void *)(long)read(*(int *)fd, buffer, sizeof buffer);
}

static void sharing(void)
{
	char buffer[BSIZE];
	int fd = open_pcs(0);
	pthread_t reader;
	pthread_create(&reader, NULL, read_all, &fd);
	nap(100);
	int hz = ioctl(fd, PCS_GETHZ, 0);
	check("an ioctl beside a blocked read", hz == 100, "%d", hz);
	ioctl(fd, PCS_STOP, 0);
	void *result;
	pthread_join(reader, &result);
	check("the blocked read ends by PCS_STOP", result == NULL, "%ld", (long)result);
	close(fd);

	fd = open_pcs(0);
	pid_t child = fork();
	if (child == 0) {
		read(fd, buffer, sizeof buffer);
		_exit(1);
	}
	nap(100);
	close(fd);
	fails("open while a child has it", open(NODE, O_RDONLY), EBUSY);
	kill(child, SIGKILL);
	int status = status_of(child);
	check("a blocked reader can be killed", WIFSIGNALED(status), "status %#x", status);
	fd = open(NODE, O_RDONLY);
	check("open after the reader was killed", fd >= 0, "errno %d", errno);
	child = fork();
	if (child == 0) {
		close(fd);
		_exit(0);
	}
	status_of(child);
	hz = ioctl(fd, PCS_GETHZ, 0);
	check("a child's close leaves it open", hz == 100, "%d, errno %d", hz, errno);
	close(fd);
}

/* agent_pcs [elsewhere]: the second word says that what is profiled isn't this machine. */
int main(int count, char **words)
{
	int here = count < 2 || strcmp(words[1], "elsewhere") != 0;
	start();
	opening();
	integers();
	lists();
	if (here) {
		in_namespace("PROF_LIST in a pid namespace", PROF_LIST);
		in_namespace("PROF_GROUP in a pid namespace", PROF_GROUP);
	}
	accounts();
	without_waiting();
	reading();
	sharing();
	return finish("agent_pcs");
}
