/*
 * Keeps the lab kernel from patching its own code while it runs.
 *
 * KVM and perf switch code paths of the scheduler on with their first user and
 * off with their last (jump labels: first an int3, then the new bytes). QEMU's
 * multi-threaded TCG may translate such code on another CPU between the two,
 * keep the int3, and run it when the kernel no longer expects one: the kernel
 * dies. With one user that stays, the paths are switched once, before the
 * command starts, when a machine that dies can still be replaced by another.
 *
 * Prints the id of the process that stays.
 */
#include <fcntl.h>
#include <linux/kvm.h>
#include <linux/perf_event.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

static int failed(const char *what)
{
	perror(what);
	return 1;
}

int main(void)
{
	struct perf_event_attr clock = {
		.type = PERF_TYPE_SOFTWARE,
		.size = sizeof(clock),
		.config = PERF_COUNT_SW_TASK_CLOCK,
	};
	int kvm, vm;
	pid_t child;

	kvm = open("/dev/kvm", O_RDWR);
	if (kvm < 0)
		return failed("/dev/kvm");
	/* The scheduler's preempt_notifier_key. */
	vm = ioctl(kvm, KVM_CREATE_VM, 0);
	if (vm < 0)
		return failed("KVM_CREATE_VM");
	/* KVM's apic_sw_disabled: a vCPU starts with its APIC disabled. */
	if (ioctl(vm, KVM_CREATE_IRQCHIP, 0) < 0)
		return failed("KVM_CREATE_IRQCHIP");
	if (ioctl(vm, KVM_CREATE_VCPU, 0) < 0)
		return failed("KVM_CREATE_VCPU");
	/* The scheduler's perf_sched_events. */
	if (syscall(SYS_perf_event_open, &clock, 0, -1, -1, 0) < 0)
		return failed("perf_event_open");

	child = fork();
	if (child < 0)
		return failed("fork");
	if (child > 0)
		return printf("%d\n", (int)child) < 0;
	/* The reader of the id waits for the end of this stream. */
	close(STDOUT_FILENO);
	for (;;)
		pause();
}
