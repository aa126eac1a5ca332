/*
 * Port and memory I/O that checks what it gets. A vCPU that sees a wrong value
 * counts an error and halts.
 */
#include "workloads.h"

#define BUFFER 64

uint64_t string_io_round(uint8_t *buffer, uint64_t bytes);
uint64_t memory_io_round(void);

static void judge(uint64_t wrong)
{
    if (wrong) {
        this_counter()->errors++;
        stop();
    }
    this_counter()->rounds++;
}

static void begin(void)
{
    switch_to(&threads[1][this_vcpu()->index]);
    truth_enter(ROW_KERNEL);
}

/* REP INSB and REP OUTSB at a port that nobody claims. */
void string_io(void)
{
    uint8_t buffer[BUFFER];

    begin();
    for (;;) {
        for (uint32_t i = 0; i < BUFFER; i++)
            buffer[i] = 0;
        uint64_t wrong = string_io_round(buffer, BUFFER);
        for (uint32_t i = 0; i < BUFFER; i++)
            wrong |= buffer[i] != 0xff;
        judge(wrong);
    }
}

/* Reads and writes of all sizes at addresses that nobody claims. */
void memory_io(void)
{
    begin();
    for (;;)
        judge(memory_io_round());
}
