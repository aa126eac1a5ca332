/* What the workloads that are clients on a port have in common. */
#ifndef PORT_H
#define PORT_H

#include "../virtio/results.h"
#include "../virtio/wire.h"

/* Notes how a step has ended. */
int try(enum step step, int outcome);

/* Says how far the workload is, and waits until it may go on. */
void reach(enum stage stage);

/* Prepares the results, and the first vCPU's threads. */
void begin(struct console *console);

/* Finds the port and says hello. */
int say_hello(struct console *console, struct connection *connection);

/* A turn of user mode for each process. */
void run_processes(void);

#endif
