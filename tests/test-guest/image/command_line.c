/* The command line: words of the form name=value; those that mean nothing here are passed over. */
#include "kernel.h"
#include "options.h"

struct options options = { .duty = 50, .period = 10000, .depth = 1, .attack = EVERY_ATTACK };

/* A word's value, if the word has this name. */
static const char *value_of(const char *word, const char *name)
{
    while (*name != 0) {
        if (*word++ != *name++)
            return NULL;
    }
    return word;
}

static int ends(char character)
{
    return character == 0 || character == ' ' || character == '\n' || character == '\t';
}

static void copy_word(char *to, const char *from, uint32_t room)
{
    uint32_t length = 0;

    while (!ends(from[length]) && length + 1 < room) {
        to[length] = from[length];
        length++;
    }
    to[length] = 0;
}

/* A decimal number; what follows its digits is passed over. Large ones stop growing before they overflow. */
static uint64_t number(const char *text)
{
    uint64_t value = 0;

    while (*text >= '0' && *text <= '9' && value < 1000000000)
        value = value * 10 + (uint64_t)(*text++ - '0');
    return value;
}

static uint64_t hexadecimal(const char *text)
{
    uint64_t value = 0;

    if (text[0] == '0' && text[1] == 'x')
        text += 2;
    for (;; text++) {
        if (*text >= '0' && *text <= '9')
            value = value << 4 | (uint64_t)(*text - '0');
        else if (*text >= 'a' && *text <= 'f')
            value = value << 4 | (uint64_t)(*text - 'a' + 10);
        else
            return value;
    }
}

/* Linux's form, SIZE@ADDRESS:INTERRUPT (virtio_mmio.c); 0 without an address that this guest can reach. */
static uint64_t device_address(const char *text)
{
    while (!ends(*text) && *text != '@')
        text++;
    uint64_t address = *text == '@' ? hexadecimal(text + 1) : 0;
    return address >= DEVICES && address < DEVICES_END ? address : 0;
}

/* The first one is the console. */
static void add_device(uint64_t address)
{
    if (address != 0 && options.device_count < DEVICES_MAX)
        options.devices[options.device_count++] = address;
    options.console = options.devices[0];
}

void parse_command_line(const char *line)
{
    while (*line != 0) {
        const char *value;
        if ((value = value_of(line, "workload=")) != NULL) {
            copy_word(options.workload, value, sizeof(options.workload));
        } else if ((value = value_of(line, "duty=")) != NULL) {
            options.duty = number(value);
            copy_word(options.workload, "duty", sizeof(options.workload));
        } else if ((value = value_of(line, "period=")) != NULL) {
            options.period = number(value);
        } else if ((value = value_of(line, "depth=")) != NULL) {
            options.depth = number(value);
        } else if ((value = value_of(line, "attack=")) != NULL) {
            options.attack = number(value);
        } else if ((value = value_of(line, "virtio_mmio.device=")) != NULL) {
            add_device(device_address(value));
        }
        while (!ends(*line))
            line++;
        while (*line != 0 && ends(*line))
            line++;
    }
    if (options.duty > 100)
        options.duty = 100;
    if (options.period == 0)
        options.period = 1;
    if (options.depth == 0)
        options.depth = 1;
}
