#include "counters.h"

_Static_assert(sizeof(struct counter) * VCPUS == 4096, "src/counters.rs");

struct counter kvmprof_counters[VCPUS] USER_DATA;
