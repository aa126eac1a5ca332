/* The guest's file systems. */

#pragma once

#include "settings.h"

/* Makes the initial RAM disk's /dev, and loads the modules. */
void start_drivers(const struct settings *settings);

/* Makes the shared folder the root, with what programs expect to be mounted in it. False, with a message, if that can't be done. */
bool change_root(const struct settings *settings);
