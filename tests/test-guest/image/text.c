#include "text.h"
#include "kernel.h"

int equal(const char *a, const char *b)
{
    while (*a != 0 && *a == *b) {
        a++;
        b++;
    }
    return *a == *b;
}

void print_number(const char *text, uint64_t number)
{
    char digits[24];
    uint32_t at = sizeof(digits) - 1;

    digits[at] = 0;
    do {
        digits[--at] = (char)('0' + number % 10);
        number /= 10;
    } while (number != 0);
    print(text);
    print(digits + at);
    print("\r\n");
}
