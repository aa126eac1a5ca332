/* Many functions that are called through the procedure linkage table, as all that a library exports. */

#define TEN(each, number)                                                                          \
    each(number##0) each(number##1) each(number##2) each(number##3) each(number##4)                \
    each(number##5) each(number##6) each(number##7) each(number##8) each(number##9)
#define HUNDRED(each, number)                                                                      \
    TEN(each, number##0) TEN(each, number##1) TEN(each, number##2) TEN(each, number##3)            \
    TEN(each, number##4) TEN(each, number##5) TEN(each, number##6) TEN(each, number##7)            \
    TEN(each, number##8) TEN(each, number##9)
#define ALL(each) HUNDRED(each, 1) HUNDRED(each, 2) HUNDRED(each, 3) HUNDRED(each, 4)

#define DEFINE(number) void a_function_that_is_bound_##number(void) {}
#define CALL(number) a_function_that_is_bound_##number();

ALL(DEFINE)

/* The dynamic linker searches each function once. */
void calls_each(void)
{
    ALL(CALL)
    __asm__ volatile("" ::: "memory");
}

void nothing(void)
{
}

void through_stub(void)
{
    for (int turn = 0; turn < 100000; turn++)
        nothing();
}
