/* Prints every number of the headers, and every structure with a different value in each field. */
#include "pcs.h"
#include "prf.h"
#include "sys/pmc.h"
#include "pcs.h"
#include "prf.h"
#include "machine/pmc.h"
#include "sys/pmc.h"

#include <stdio.h>
#include <string.h>

static void dump(const char *name, const void *record, size_t size)
{
	const unsigned char *bytes = (const unsigned char *)record;
	size_t at;

	printf("%s ", name);
	for (at = 0; at < size; at++)
		printf("%02x", (unsigned)bytes[at]);
	printf("\n");
}

#define NUMBER(name) printf("%s %lu\n", #name, (unsigned long)(name))
#define TEXT(name) printf("%s %s\n", #name, name)
#define DUMP(name) dump(#name, &name, sizeof name)
#define CLEARED(type, name) struct type name; memset(&name, 0, sizeof name)

static void numbers(void)
{
	TEXT(PCS_NODE);
	NUMBER(KERNEL);
	NUMBER(USER);
	NUMBER(IDLE);
	NUMBER(MKERNEL);
	NUMBER(MUSER);
	NUMBER(START);
	NUMBER(STOP);
	NUMBER(IOCTL);
	NUMBER(KERNELI);
	NUMBER(MKERNELI);
	NUMBER(PCS_PSTAT);
	NUMBER(PCS_COMM);
	NUMBER(BSIZE);
	NUMBER(DEF_BUFNO);
	NUMBER(MAX_BUFS);
	NUMBER(MAX_LIST);
	NUMBER(BUF_INCR);
	NUMBER(PROF_KERNEL);
	NUMBER(PROF_ALL);
	NUMBER(PROF_GROUP);
	NUMBER(PROF_LIST);
	NUMBER(PROF_MASK);
	NUMBER(PCS_FLUSH);
	NUMBER(PCS_SETFORMAT);
	NUMBER(PCS_SETBSIZE);
	NUMBER(PCS_GETHZ);
	NUMBER(PCS_SETHZ);
	NUMBER(PCS_STOP);
	NUMBER(PCS_GETSTAT);
	NUMBER(PCS_FORMAT_NATIVE);
	NUMBER(PCS_FORMAT_CLASSIC);
	NUMBER(PCS_MIN_BSIZE);
	NUMBER(PCS_MAX_BSIZE);
	NUMBER(PCS_MIN_HZ);
	NUMBER(PCS_MAX_HZ);
	NUMBER(PCS_MERGE_TICKS);
	NUMBER(PCS_UNUSED_BOUND);
	TEXT(PRF_NODE);
	NUMBER(PRF_GETSTATUS);
	NUMBER(PRF_GETSIZE);
	NUMBER(PRF_SETSTATE);
	NUMBER(PRF_GETMAX);
	NUMBER(PRF_STATUS_ON);
	NUMBER(PRF_STATUS_LOADED);
	NUMBER(PRF_ALL_VCPUS);
	NUMBER(PRF_RATE_HZ);
	NUMBER(PRF_WORD_SIZE);
	NUMBER(PRF_MIN_ADDRESSES);
	NUMBER(PRF_MAX_ADDRESSES);
	NUMBER(PRF_EXTRA_COUNTERS);
	NUMBER(PRF_READ_SIZE(1000));
	NUMBER(NUMSAMPS);
	NUMBER(NUMWASTE);
	NUMBER(sizeof(struct LOGBUF));
}

static void numbers_of_pmc(void)
{
	NUMBER(PMC_EVENT_CPU_TIME);
	NUMBER(PMC_EVENT_TICKS);
	NUMBER(PMC_EVENT_PORT_READS);
	NUMBER(PMC_EVENT_PORT_WRITES);
	NUMBER(PMC_EVENT_MMIO_READS);
	NUMBER(PMC_EVENT_MMIO_WRITES);
	NUMBER(PMC_EVENT_INTERRUPTED);
	NUMBER(PMC_EVENT_EXITS);
	NUMBER(PMC_EVENT_HALTS);
	NUMBER(PMC_EVENT_INTERRUPTS);
	NUMBER(PMC_EVENT_TLB_FLUSHES);
	NUMBER(PMC_EVENT_EMULATED);
	NUMBER(PMC_EVENT_PAGE_FAULTS);
	NUMBER(PMC_EVENT_CYCLES);
	NUMBER(PMC_EVENT_INSTRUCTIONS);
	NUMBER(PMC_EVENT_BRANCHES);
	NUMBER(PMC_EVENT_BRANCH_MISSES);
	NUMBER(PMC_EVENT_CACHE_REFERENCES);
	NUMBER(PMC_EVENT_CACHE_MISSES);
	NUMBER(PMC_TYPE_KVMPROF);
	NUMBER(PMC_TYPE_KVM);
	NUMBER(PMC_TYPE_PROCESSOR);
	NUMBER(PMC_HAS_KVMPROF);
	NUMBER(PMC_HAS_KVM);
	NUMBER(PMC_HAS_PROCESSOR);
	NUMBER(PMC_VALUE_FLAGS_CHILDREN);
	/* curlwp is a call of the library's, and isn't made. */
	NUMBER(sizeof(curlwp) == sizeof(struct lwp *));
}

static void configuration(void)
{
	CLEARED(pmc_counter_cfg, pmc_counter_cfg);

	pmc_counter_cfg.event_id = (pmc_evid_t)0x01020304;
	pmc_counter_cfg.reset_value = (pmc_ctr_t)0x1112131415161718;
	pmc_counter_cfg.flags = 0x21222324;
	DUMP(pmc_counter_cfg);
}

static void list(void)
{
	CLEARED(pid_list, pid_list);
	int at;

	pid_list.p_count = MAX_LIST;
	for (at = 0; at < MAX_LIST; at++)
		pid_list.p_list[at] = 101 + at;
	DUMP(pid_list);
}

static void native(void)
{
	CLEARED(pcs_native_logbuf_hdr, native_header);
	CLEARED(pcs_native_psample, native_psample);
	CLEARED(pcs_native_msample, native_msample);
	CLEARED(pcs_native_ssample, native_ssample);
	CLEARED(pcs_native_isample, native_isample);
	int at;

	native_header.h_unused = 0x0102;
	native_header.h_numlost = 0x03040506;
	DUMP(native_header);
	native_psample.type = KERNELI;
	native_psample.sspace = 0xf0;
	native_psample.cpu = 0x0102;
	native_psample.pid = 0x03040506;
	native_psample.pc = 0xffffffff81001234u;
	DUMP(native_psample);
	native_msample.type = MUSER;
	native_msample.cpu = 0x0102;
	native_msample.count = 0x03040506;
	DUMP(native_msample);
	native_ssample.type = STOP;
	native_ssample.stime = 0x0102030405060708;
	DUMP(native_ssample);
	native_isample.type = IOCTL;
	native_isample.cmd = PROF_LIST;
	for (at = 0; at < MAX_LIST; at++)
		native_isample.data[at] = 0x01020304 + at;
	DUMP(native_isample);
}

static void classic(void)
{
	CLEARED(pcs_classic_logbuf_hdr, classic_header);
	CLEARED(pcs_classic_psample, classic_psample);
	CLEARED(pcs_classic_msample, classic_msample);
	CLEARED(pcs_classic_ssample, classic_ssample);
	CLEARED(pcs_classic_isample, classic_isample);
	int at;

	classic_header.h_unused = 0x0102;
	classic_header.h_numlost = 0x0304;
	DUMP(classic_header);
	classic_psample.type = KERNELI;
	classic_psample.sspace = 0xf0;
	classic_psample.pid = 0x0102;
	classic_psample.pc = 0x81001234u;
	DUMP(classic_psample);
	classic_msample.type = MUSER;
	classic_msample.count = 0x0102;
	DUMP(classic_msample);
	classic_ssample.type = STOP;
	classic_ssample.stime = 0x01020304;
	DUMP(classic_ssample);
	classic_isample.type = IOCTL;
	classic_isample.cmd = PROF_LIST;
	for (at = 0; at < MAX_LIST; at++)
		classic_isample.data[at] = (int16_t)(0x0102 + at);
	DUMP(classic_isample);
}

static void fill(struct pcs_ledger *ledger)
{
	ledger->ticks = 1;
	ledger->recorded = 2;
	ledger->merged = 3;
	ledger->ungathered = 4;
	ledger->stolen = 5;
	ledger->lost = 6;
	ledger->pending = 7;
	ledger->discarded = 0x0102030405060708;
}

static void accounts(void)
{
	CLEARED(pcs_status, status);
	CLEARED(pcs_pstat, pstat);
	CLEARED(pcs_comm, comm);

	fill(&status.ledger);
	status.hz = 11;
	status.vcpus = 12;
	status.format = PCS_FORMAT_CLASSIC;
	status.bsize = 13;
	status.bufno = 14;
	status.modes = 15;
	DUMP(status);
	pstat.type = PCS_PSTAT;
	fill(&pstat.ledger);
	pstat.hz = 11;
	pstat.vcpus = 12;
	pstat.format = PCS_FORMAT_CLASSIC;
	pstat.bsize = 13;
	pstat.bufno = 14;
	pstat.modes = 15;
	pstat.span = 0x0102030405060708;
	DUMP(pstat);
	comm.type = PCS_COMM;
	comm.pid = 0x01020304;
	memcpy(comm.comm, "0123456789abcdef", sizeof comm.comm);
	DUMP(comm);
}

/* The historical names stand for one of both forms. */
static void names(void)
{
	CLEARED(LOGBUF, buffer);

	buffer.lb_buf_hdr.h_unused = NUMWASTE;
	buffer.lb_data[0].type = USER;
	NUMBER(sizeof(buffer.lb_buf_hdr));
	NUMBER(sizeof(struct PSAMPLE));
	NUMBER(sizeof(struct MSAMPLE));
	NUMBER(sizeof(struct SSAMPLE));
	NUMBER(sizeof(struct ISAMPLE));
}

int main(void)
{
	numbers();
	numbers_of_pmc();
	configuration();
	list();
	native();
	classic();
	accounts();
	names();
	return 0;
}
