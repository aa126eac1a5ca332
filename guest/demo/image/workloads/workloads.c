/* The names of the workloads. */
#include "workloads.h"

static const struct workload workloads[] = {
    { "mixed", mixed },
};

const struct workload *find_workload(const char *name)
{
    for (uint32_t i = 0; i < sizeof(workloads) / sizeof(workloads[0]); i++) {
        if (equal(workloads[i].name, name))
            return &workloads[i];
    }
    return NULL;
}
