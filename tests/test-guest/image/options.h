/* What the command line asks for. */
#ifndef OPTIONS_H
#define OPTIONS_H

#include <stdint.h>

#define DEVICES_MAX 32

struct options {
    char workload[24];
    uint64_t duty;    /* percent */
    uint64_t period;  /* microseconds */
    uint64_t attack;  /* the one to be tried, or EVERY_ATTACK */
    uint64_t console; /* address of the first virtio device's registers, the console's; 0: there is none */
    uint32_t devices; /* virtio devices in all */
    uint64_t device[DEVICES_MAX]; /* the addresses of their registers */
};

#define EVERY_ATTACK UINT64_MAX

extern struct options options;

void parse_command_line(const char *line);

#endif
