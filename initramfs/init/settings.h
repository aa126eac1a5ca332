/* What the program is to do: the file /settings, one setting in a line, which kvmprof writes. */

#pragma once

#include <stdbool.h>

enum { MODULES_MAX = 64 };

struct settings {
    /* Files of modules, in the order in which they load. */
    const char *modules[MODULES_MAX + 1];
    /* The tag of the file system that becomes the root. */
    const char *tag;
    /* Whether the folder itself is the root, not an overlay over it. */
    bool writable;
    /* The device of the console, under /dev. */
    const char *console;
    /* TERM=NAME of that terminal. */
    const char *terminal;
    /* Its size, or 0. */
    unsigned rows, columns;
    /* The device of the disk to which the status is written, under /dev, or a null pointer. */
    const char *status;
    /* The program that takes this one's place, or a null pointer. */
    const char *init;
    /* The command that is run in place of a shell, or a null pointer. */
    const char *command;
};

/* Reads them; false if there are none. */
bool read_settings(struct settings *settings);
