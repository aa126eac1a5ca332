/* Programs that use /dev/profil itself, for what they shouldn't. */

#define _GNU_SOURCE
#include <linux/userfaultfd.h>
#include <pcsample.h>
#include <poll.h>
#include <sys/auxv.h>
#include <sys/syscall.h>

#include "agent_checks.h"
#include "call.h"
#include "profil_work.h"

#define PROFIL_GETSTAT (('U' << 8) | 2)
#define KEEP 2
#define HOSTILE_USER 2000
/* More than pcsd looks at for one user at a time, and more than it has open for one. */
#define HOSTILE_CALLS 20
#define HOSTILE_FILES 300

static uintptr_t samples[64];

static int open_profil(void)
{
	int device = open(PROFIL_NODE, O_RDWR);

	if (device < 0)
		stop("open /dev/profil");
	return device;
}

/* A call that turns pcsample on. */
static struct call on(void)
{
	struct call call = {
		.function = PCSAMPLE,
		.buffer = (uintptr_t)samples,
		.size = 64,
	};
	return call;
}

/* The ioctl of a 32-bit program: the kernel takes it by its other way in. */
static long narrow_ioctl(int device, unsigned long command, const void *argument)
{
	long result;

	__asm__ volatile("int $0x80"
	                 : "=a"(result)
	                 : "a"(54), "b"(device), "c"(command), "d"(argument)
	                 : "memory", "r8", "r9", "r10", "r11");
	if (result < 0) {
		errno = -result;
		return -1;
	}
	return result;
}

static void the_device_refuses(int device)
{
	struct call call = on();
	char bytes[64] = "";

	call.flags = KEEP;
	fails("a kept buffer", ioctl(device, PROFIL_CALL, &call), EINVAL);
	call.flags = 4;
	fails("an unknown flag", ioctl(device, PROFIL_CALL, &call), EINVAL);
	call.flags = 0;
	call.ranges = 1;
	fails("ranges in the call", ioctl(device, PROFIL_CALL, &call), EINVAL);
	call.ranges = 0;
	call.function = 5;
	fails("an unknown function", ioctl(device, PROFIL_CALL, &call), EINVAL);
	fails("no call", ioctl(device, PROFIL_CALL, NULL), EFAULT);
	fails("half a call", ioctl(device, PROFIL_CALL, edge_of_memory() - 40), EFAULT);
	fails("an unknown command", ioctl(device, 0x5503, &call), EINVAL);
	fails("a read", read(device, bytes, sizeof bytes), EINVAL);
	fails("a write", write(device, bytes, sizeof bytes), EINVAL);
	fails("a state before any call", ioctl(device, PROFIL_GETSTAT, bytes), EINVAL);
	call = on();
	fails("a 32-bit program", narrow_ioctl(device, PROFIL_CALL, &call), EOPNOTSUPP);
	struct pollfd poll_fd = { device, POLLIN, 0 };
	check("poll never waits", poll(&poll_fd, 1, -1) == 1, "errno %d", errno);
}

/* Whoever a process says that it is, it is itself that is sampled. */
static void a_process_is_itself(int device)
{
	struct call call = on();
	struct result result = { 0 };
	uint32_t state[12];

	call.pid = 1;
	call.time = 1;
	memset(call.program, 0x55, sizeof call.program);
	check("a call in another's name", ioctl(device, PROFIL_CALL, &call) == 0, "errno %d", errno);
	while (!((volatile uintptr_t *)samples)[3])
		turn(&result);
	check("samples are its own", samples[3] < 1ul << 47, "%lx", samples[3]);
	check("its state is told", ioctl(device, PROFIL_GETSTAT, state) == 0 && state[0] == 1, "errno %d, state %u", errno,
	      state[0]);
	call.size = 0;
	long stored = ioctl(device, PROFIL_CALL, &call);
	check("the number of samples", stored >= 4, "%ld", stored);
}

/* A program whose random bytes are zero can't be told from others. */
static void who_hides_is_refused(void)
{
	pid_t child = fork();

	if (child == 0) {
		memset((void *)getauxval(AT_RANDOM), 0, 16);
		_exit(pcsample(samples, 64) != -1 || errno != EPERM);
	}
	int status = status_of(child);
	check("a program without a mark", status == 0, "%#x", status);
}

/* Memory that never appears: who touches it waits for ever. */
static void *endless_memory(void)
{
	struct uffdio_api api = { .api = UFFD_API };
	void *memory = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct uffdio_register range = {
		.range = { (uintptr_t)memory, 4096 },
		.mode = UFFDIO_REGISTER_MODE_MISSING,
	};
	long faults = syscall(SYS_userfaultfd, O_CLOEXEC);

	if (faults < 0 || ioctl(faults, UFFDIO_API, &api) || ioctl(faults, UFFDIO_REGISTER, &range))
		stop("userfaultfd");
	return memory;
}

/* Has pcsd look at an array that never appears. */
static pid_t start_hostile(int ready)
{
	pid_t child = fork();

	if (child == 0) {
		struct call call = { .function = AIX_RANGES };

		call.buffer = (uintptr_t)endless_memory();
		if (setgid(HOSTILE_USER) || setuid(HOSTILE_USER))
			_exit(2);
		int device = open_profil();
		if (write(ready, "y", 1) != 1)
			_exit(3);
		ioctl(device, PROFIL_CALL, &call);
		_exit(4);
	}
	return child;
}

static int can_sample(void)
{
	struct result result = { 0 };

	memset(samples, 0, sizeof samples);
	if (pcsample(samples, 64) != 0)
		return 0;
	while (!((volatile uintptr_t *)samples)[2])
		turn(&result);
	return pcsample(NULL, 0) >= 3;
}

static void others_go_on(void)
{
	pid_t hostile[HOSTILE_CALLS];
	int ready[2], killed = 0;
	char word;

	if (pipe(ready))
		stop("pipe");
	for (int i = 0; i < HOSTILE_CALLS; i++) {
		hostile[i] = start_hostile(ready[1]);
		if (read(ready[0], &word, 1) != 1)
			stop("a hostile process");
	}
	check("others sample themselves", can_sample(), "errno %d", errno);
	for (int i = 0; i < HOSTILE_CALLS; i++) {
		kill(hostile[i], SIGKILL);
		killed += status_of(hostile[i]) == SIGKILL;
	}
	check("who waits can be killed", killed == HOSTILE_CALLS, "%d", killed);
	pid_t child = fork();
	if (child == 0)
		_exit(setgid(HOSTILE_USER) || setuid(HOSTILE_USER) || !can_sample());
	int status = status_of(child);
	check("the same user's later ones go on", status == 0, "%#x", status);
}

/* Opens all that it gets. */
static void files_are_left_for_others(void)
{
	int ready[2];
	char word = 0;

	if (pipe(ready))
		stop("pipe");
	pid_t child = fork();
	if (child == 0) {
		if (setgid(HOSTILE_USER) || setuid(HOSTILE_USER))
			_exit(2);
		for (int i = 0; i < HOSTILE_FILES; i++) {
			/* It waits in one of these. */
			if (open(PROFIL_NODE, O_RDWR) < 0 || write(ready[1], "y", 1) != 1)
				_exit(3);
		}
		_exit(4);
	}
	for (int i = 0; i < 20; i++)
		if (read(ready[0], &word, 1) != 1)
			stop("a hostile process");
	check("others open it", can_sample(), "errno %d", errno);
	int prf = open("/dev/prf", O_RDWR);
	check("other nodes can be opened", prf >= 0, "errno %d", errno);
	close(prf);
	kill(child, SIGKILL);
	int status = status_of(child);
	check("who waits for a file can be killed", status == SIGKILL, "%#x", status);
}

/* A daemon forks two processes. One has become another user's, and has itself sampled; the other has the same random
 * bytes and addresses, but isn't its child. */
static void a_sibling_is_left_alone(void)
{
	struct result result = { 0 };
	int ready[2];
	char word;

	if (pipe(ready))
		stop("pipe");
	pid_t hostile = fork();
	if (hostile == 0) {
		if (setgid(HOSTILE_USER) || setuid(HOSTILE_USER) || pcsample(samples, 64) != 0 ||
		    write(ready[1], "y", 1) != 1)
			_exit(1);
		for (;;)
			pause();
	}
	check("a hostile sibling", read(ready[0], &word, 1) == 1, "errno %d", errno);
	pid_t child = fork();
	if (child == 0) {
		memset(samples, 0, sizeof samples);
		while (result.heavy_turns < 5000)
			turn(&result);
		for (size_t i = 0; i < sizeof samples / sizeof *samples; i++)
			if (((volatile uintptr_t *)samples)[i])
				_exit(1);
		_exit(0);
	}
	int status = status_of(child);
	check("a sibling's memory", status == 0, "%#x: it was written to", status);
	kill(hostile, SIGKILL);
	status_of(hostile);
}

int main(void)
{
	start();
	int device = open_profil();
	the_device_refuses(device);
	a_process_is_itself(device);
	close(device);
	who_hides_is_refused();
	a_sibling_is_left_alone();
	others_go_on();
	files_are_left_for_others();
	return finish("profil_hostile");
}
