#include "text.h"

#include "system.h"

size_t length(const char *text)
{
    size_t count = 0;
    while (text[count])
        count++;
    return count;
}

bool begins(const char *text, const char *start)
{
    while (*start)
        if (*text++ != *start++)
            return false;
    return true;
}

unsigned number(const char *text)
{
    unsigned value = 0;
    while (*text >= '0' && *text <= '9')
        value = value * 10 + (unsigned)(*text++ - '0');
    return value;
}

const char *digits(long value)
{
    static char text[24];
    char *at = text + sizeof text - 1;
    *at = 0;
    do {
        *--at = (char)('0' + value % 10);
        value /= 10;
    } while (value);
    return at;
}

static void put(const char *text)
{
    CALL(SYS_write, 2, text, length(text));
}

void say(const char *const *parts)
{
    put("kvmprof: ");
    for (; *parts; parts++)
        put(*parts);
    put("\n");
}
