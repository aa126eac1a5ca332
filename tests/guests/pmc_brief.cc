/* The same in C++. */
#include "pmc_brief.c"
