/* Two processes that take turns at work, of which each knows how much it did: what is counted for them by pmc(9). */

#include <errno.h>

#include "agent_checks.h"
#include "pmc_work.h"

/* Ticks of both together. */
#define ENOUGH 400
/* Pieces of work of a turn: so much that to be told of the turn is little beside it. */
#define PIECES 40

static const int chosen[] = { PMC_EVENT_CPU_TIME, PMC_EVENT_TICKS, PMC_EVENT_EXITS, PMC_EVENT_PORT_READS };
#define CHOSEN (sizeof chosen / sizeof *chosen)

struct worker {
	struct steps steps;
	struct lwp *l;
	pid_t pid;
	long turns;
};

static void start_worker(struct worker *worker)
{
	make_steps(&worker->steps);
	worker->pid = fork();
	if (worker->pid == 0) {
		wait_for_step(&worker->steps);
		for (;;) {
			for (int i = 0; i < PIECES; i++)
				work();
			stepped(&worker->steps, 'y');
		}
	}
	worker->l = pmc_lwp(worker->pid);
	for (size_t i = 0; i < CHOSEN; i++) {
		int error = begin(worker->l, chosen[i]);

		check("a worker's counter", error == 0 || error == ENODEV, "%d: error %d", chosen[i], error);
	}
}

int main(void)
{
	struct worker workers[2] = { 0 };
	unsigned long state = 1;
	int64_t ticks = 0;

	start();
	allow_port();
	for (int i = 0; i < 2; i++)
		start_worker(&workers[i]);
	for (long turns = 0; ticks < ENOUGH; turns++) {
		/* Marsaglia's xorshift: with a chance of 1 in 4 the first one's turn. */
		state ^= state << 13;
		state ^= state >> 7;
		state ^= state << 17;
		struct worker *worker = &workers[state % 4 != 0];

		if (step(&worker->steps) != 'y')
			stop("a worker");
		worker->turns++;
		if (turns % 16 == 0)
			ticks = value_of(workers[0].l, PMC_EVENT_TICKS, 0) + value_of(workers[1].l, PMC_EVENT_TICKS, 0);
	}
	for (size_t i = 0; i < CHOSEN; i++)
		printf("counter %d: %ld %ld\n", chosen[i], (long)value_of(workers[0].l, chosen[i], 0),
		       (long)value_of(workers[1].l, chosen[i], 0));
	printf("turns %ld %ld reads %ld %ld\n", workers[0].turns, workers[1].turns, workers[0].turns * PIECES,
	       workers[1].turns * PIECES);
	for (int i = 0; i < 2; i++) {
		kill(workers[i].pid, SIGKILL);
		status_of(workers[i].pid);
	}
	return finish("pmc_shares");
}
