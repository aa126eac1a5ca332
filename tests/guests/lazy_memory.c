/*
 * A VMM whose guest writes to one more page of its memory after each line of the input. The handler of a userfaultfd brings the page. After the line "on" the
 * guest has interrupts on, so that KVM may have the vCPU halt while another thread waits for the page; else the vCPU's thread waits itself. Prints how many
 * pages the guest has written to.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/kvm.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { PAGE = 4096, MEMORY = 1 << 20, CODE = 0x1000, FIRST = 0x10000, INTERRUPTS = 1 << 9 };

static const unsigned char code[] = {
	0xe6, 0x01,             /* again: out %al, $1 */
	0x26, 0xa2, 0x00, 0x00, /* mov %al, %es:0 */
	0x8c, 0xc0,             /* mov %es, %ax */
	0x05, 0x00, 0x01,       /* add $0x100, %ax */
	0x8e, 0xc0,             /* mov %ax, %es */
	0xeb, 0xf1,             /* jmp again */
};

static int checked(long result, const char *what)
{
	if (result < 0) {
		perror(what);
		exit(1);
	}
	return result;
}

static void *bring_pages(void *userfaults)
{
	struct uffd_msg fault;
	static char contents[PAGE];
	int faults = *(int *)userfaults;

	while (read(faults, &fault, sizeof(fault)) == sizeof(fault)) {
		struct uffdio_copy page = {
			.dst = fault.arg.pagefault.address & ~(PAGE - 1UL),
			.src = (unsigned long)contents,
			.len = PAGE,
		};
		checked(ioctl(faults, UFFDIO_COPY, &page), "UFFDIO_COPY");
	}
	return NULL;
}

/* Memory with the code, whose pages from FIRST on are brought. */
static char *lazy_memory(void)
{
	static int faults;
	char *memory = mmap(NULL, MEMORY, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct uffdio_api api = { .api = UFFD_API };
	struct uffdio_register missing = {
		.range = { (unsigned long)memory + FIRST, MEMORY - FIRST },
		.mode = UFFDIO_REGISTER_MODE_MISSING,
	};
	pthread_t thread;

	checked(memory == MAP_FAILED ? -1 : 0, "mmap");
	memcpy(memory + CODE, code, sizeof(code));
	faults = checked(syscall(SYS_userfaultfd, O_CLOEXEC), "userfaultfd");
	checked(ioctl(faults, UFFDIO_API, &api), "UFFDIO_API");
	checked(ioctl(faults, UFFDIO_REGISTER, &missing), "UFFDIO_REGISTER");
	checked(-pthread_create(&thread, NULL, bring_pages, &faults), "pthread_create");
	return memory;
}

/* Has the vCPU begin at the code, in real mode. */
static void begin(int vcpu)
{
	struct kvm_sregs segments;
	struct kvm_regs registers = { .rip = CODE, .rflags = 2 };

	checked(ioctl(vcpu, KVM_GET_SREGS, &segments), "KVM_GET_SREGS");
	segments.cs.base = segments.cs.selector = 0;
	segments.es.base = FIRST;
	segments.es.selector = FIRST >> 4;
	checked(ioctl(vcpu, KVM_SET_SREGS, &segments), "KVM_SET_SREGS");
	checked(ioctl(vcpu, KVM_SET_REGS, &registers), "KVM_SET_REGS");
}

static void let_interrupts(int vcpu)
{
	struct kvm_regs registers;

	checked(ioctl(vcpu, KVM_GET_REGS, &registers), "KVM_GET_REGS");
	registers.rflags |= INTERRUPTS;
	checked(ioctl(vcpu, KVM_SET_REGS, &registers), "KVM_SET_REGS");
}

int main(void)
{
	int kvm = checked(open("/dev/kvm", O_RDWR | O_CLOEXEC), "/dev/kvm");
	int vm = checked(ioctl(kvm, KVM_CREATE_VM, 0), "KVM_CREATE_VM");
	struct kvm_userspace_memory_region slot = {
		.memory_size = MEMORY,
		.userspace_addr = (unsigned long)lazy_memory(),
	};
	/* With interrupt controllers, without which KVM lets no other thread wait. */
	checked(ioctl(vm, KVM_CREATE_IRQCHIP, 0), "KVM_CREATE_IRQCHIP");
	checked(ioctl(vm, KVM_SET_USER_MEMORY_REGION, &slot), "KVM_SET_USER_MEMORY_REGION");
	int vcpu = checked(ioctl(vm, KVM_CREATE_VCPU, 0), "KVM_CREATE_VCPU");
	int bytes = checked(ioctl(kvm, KVM_GET_VCPU_MMAP_SIZE, 0), "KVM_GET_VCPU_MMAP_SIZE");
	struct kvm_run *run = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, vcpu, 0);
	char line[16];

	checked(run == MAP_FAILED ? -1 : 0, "mmap");
	begin(vcpu);
	for (int pages = 0;; pages++) {
		while (ioctl(vcpu, KVM_RUN, 0) < 0)
			checked(errno == EINTR ? 0 : -1, "KVM_RUN");
		if (run->exit_reason != KVM_EXIT_IO) {
			fprintf(stderr, "exit reason %u\n", run->exit_reason);
			return 1;
		}
		printf("%d pages\n", pages);
		fflush(stdout);
		if (!fgets(line, sizeof(line), stdin))
			return 0;
		if (!strcmp(line, "on\n"))
			let_interrupts(vcpu);
	}
}
