#ifndef TEXT_H
#define TEXT_H

/* Whether two texts that end with a NUL are the same. */
int equal(const char *a, const char *b);

#endif
