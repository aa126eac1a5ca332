/* What the command line asks for. */
#ifndef OPTIONS_H
#define OPTIONS_H

#include <stdint.h>

struct options {
    char workload[24];
    uint64_t duty;    /* percent */
    uint64_t period;  /* microseconds */
    uint64_t attack;  /* the one to be tried, or EVERY_ATTACK */
    uint64_t console; /* address of the virtio console's registers; 0: there is none */
};

#define EVERY_ATTACK UINT64_MAX

extern struct options options;

void parse_command_line(const char *line);

#endif
