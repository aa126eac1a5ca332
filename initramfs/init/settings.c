#include "settings.h"

#include "system.h"
#include "text.h"

/* The value of the setting in this line, if it is the one of this name. */
static const char *value(const char *line, const char *name)
{
    return begins(line, name) ? line + length(name) : NULL;
}

static void take(struct settings *settings, const char *line)
{
    const char *found;
    static unsigned modules;
    if ((found = value(line, "module=")) && modules < MODULES_MAX)
        settings->modules[modules++] = found;
    else if ((found = value(line, "tag=")))
        settings->tag = found;
    else if ((found = value(line, "writable=")))
        settings->writable = *found == '1';
    else if ((found = value(line, "console=")))
        settings->console = found;
    else if (value(line, "TERM="))
        settings->terminal = line;
    else if ((found = value(line, "rows=")))
        settings->rows = number(found);
    else if ((found = value(line, "columns=")))
        settings->columns = number(found);
    else if ((found = value(line, "status=")))
        settings->status = found;
    else if ((found = value(line, "init=")))
        settings->init = found;
}

bool read_settings(struct settings *settings)
{
    static char text[65536];
    long file = CALL(SYS_open, "/settings", O_RDONLY, 0);
    if (file < 0)
        return false;
    size_t size = 0;
    long count;
    while ((count = CALL(SYS_read, file, text + size, sizeof text - 1 - size)) > 0)
        size += (size_t)count;
    CALL(SYS_close, file, 0, 0);
    for (char *line = text; *line;) {
        /* The command comes last, and may have more than one line. */
        const char *command = value(line, "command=");
        if (command) {
            settings->command = command;
            break;
        }
        char *end = line;
        while (*end && *end != '\n')
            end++;
        bool is_last = !*end;
        *end = 0;
        take(settings, line);
        if (is_last)
            break;
        line = end + 1;
    }
    return settings->tag && settings->console;
}
