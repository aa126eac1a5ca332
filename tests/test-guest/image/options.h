/* What the command line asks for. */
#ifndef OPTIONS_H
#define OPTIONS_H

#include <stdint.h>

/* As many virtio devices as a command line names here; those beyond are passed over. */
#define DEVICES_MAX 32

struct options {
    char workload[24];
    uint64_t duty;    /* percent */
    uint64_t period;  /* microseconds */
    uint64_t depth;   /* requests at a time, or calls that are nested */
    uint64_t attack;  /* the one to be tried, or EVERY_ATTACK */
    uint64_t console; /* address of the virtio console's registers; 0: there is none */
    uint64_t devices[DEVICES_MAX]; /* of all virtio devices, whatever they are; 0: no more */
    uint32_t device_count;
};

#define EVERY_ATTACK UINT64_MAX

extern struct options options;

void parse_command_line(const char *line);

#endif
