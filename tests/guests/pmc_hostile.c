/* Programs that use /dev/pmc itself, for what they shouldn't. */

#define _GNU_SOURCE
#include <poll.h>

#include "agent_checks.h"
#include "pmc_call.h"
#include "pmc_work.h"

#define PMC_ACCOUNT (('V' << 8) | 2)
#define HOSTILE_USER 2000
/* More than pcsd has open for one user. */
#define HOSTILE_FILES 300
#define READS PMC_EVENT_PORT_READS

static int open_pmc(void)
{
	int device = open(PMC_NODE, O_RDWR);

	if (device < 0)
		stop("open /dev/pmc");
	return device;
}

static void the_device_refuses(int device)
{
	struct pmc_call call = { .function = PMC_NUM_COUNTERS };
	char bytes[64] = "";

	fails("an account of all processes", ioctl(device, PMC_ACCOUNT, 1), EACCES);
	fails("an unknown command", ioctl(device, 0x5603, &call), EINVAL);
	fails("no call", ioctl(device, PMC_CALL, NULL), EFAULT);
	fails("half a call", ioctl(device, PMC_CALL, edge_of_memory() - 30), EFAULT);
	struct pmc_call *constant = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	*constant = call;
	mprotect(constant, 4096, PROT_READ);
	fails("a call that can't be stored", ioctl(device, PMC_CALL, constant), EFAULT);
	call.function = 0;
	fails("no function", ioctl(device, PMC_CALL, &call), EINVAL);
	call.function = PMC_IS_ENABLED + 1;
	fails("an unknown function", ioctl(device, PMC_CALL, &call), EINVAL);
	fails("a read", read(device, bytes, sizeof bytes), EINVAL);
	fails("a write", write(device, bytes, sizeof bytes), EINVAL);
	struct pollfd poll_fd = { device, POLLIN, 0 };
	check("poll never waits", poll(&poll_fd, 1, -1) == 1, "errno %d", errno);
}

/* Whatever a process says of the time and of its own number, it is itself that is counted. */
static void a_process_is_itself(int device)
{
	struct pmc_call call = { .function = PMC_CONFIGURE, .counter = READS, .event = READS, .time = 1, .value = 7 };

	check("a call of another time", ioctl(device, PMC_CALL, &call) == 0, "errno %d", errno);
	check("it comes back", call.pid == getpid() && call.time > 1 && call.value == 0, "pid %d", call.pid);
	call = (struct pmc_call){ .function = PMC_ENABLE, .counter = READS };
	check("a call in nobody's name", ioctl(device, PMC_CALL, &call) == 0, "errno %d", errno);
	read_port(3);
	call = (struct pmc_call){ .function = PMC_VALUE, .counter = READS };
	check("its value", ioctl(device, PMC_CALL, &call) == 0 && call.value == 3, "errno %d, %ld", errno, (long)call.value);
}

/* A 32-bit program's structure is the same. The kernel takes it by its other way in. */
static void a_32_bit_program_may_call(int device)
{
	struct pmc_call *call = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_32BIT, -1, 0);
	long result;

	*call = (struct pmc_call){ .function = PMC_NUM_COUNTERS };
	__asm__ volatile("int $0x80"
	                 : "=a"(result)
	                 : "a"(54), "b"(device), "c"(PMC_CALL), "d"(call)
	                 : "memory", "r8", "r9", "r10", "r11");
	has_value("a 32-bit program", result, pmc_get_num_counters());
	munmap(call, 4096);
}

/* A file that the superuser has opened gives its other users no right. */
static void a_file_of_the_superusers_gives_no_right(int device)
{
	pid_t child = fork();

	if (child == 0) {
		struct pmc_call call = { .function = PMC_ALLOC_KERNEL, .counter = READS, .event = READS };

		if (setgid(HOSTILE_USER) || setuid(HOSTILE_USER) || ioctl(device, PMC_CALL, &call) != -1 || errno != EPERM)
			_exit(1);
		call = (struct pmc_call){ .function = PMC_CONFIGURE, .pid = 1, .counter = READS, .event = READS };
		if (ioctl(device, PMC_CALL, &call) != -1 || errno != EPERM)
			_exit(2);
		call = (struct pmc_call){ .function = PMC_VALUE, .pid = PMC_PID_KERNEL, .counter = READS };
		_exit(ioctl(device, PMC_CALL, &call) != -1 || errno != ENXIO);
	}
	int status = status_of(child);
	check("another user's call of an open file", status == 0, "%#x", status);
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
			if (open(i % 2 ? PMC_NODE : "/dev/profil", O_RDWR) < 0 || write(ready[1], "y", 1) != 1)
				_exit(3);
		}
		_exit(4);
	}
	for (int i = 0; i < 20; i++)
		if (read(ready[0], &word, 1) != 1)
			stop("a hostile process");
	check("others call it", pmc_get_num_counters() > 0, "no counters");
	kill(child, SIGKILL);
	int status = status_of(child);
	check("who waits for a file can be killed", status == SIGKILL, "%#x", status);
}

int main(void)
{
	start();
	allow_port();
	int device = open_pmc();
	the_device_refuses(device);
	a_process_is_itself(device);
	a_32_bit_program_may_call(device);
	a_file_of_the_superusers_gives_no_right(device);
	close(device);
	files_are_left_for_others();
	return finish("pmc_hostile");
}
