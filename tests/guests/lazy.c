/* Loads a library again and again, whose functions are bound when they are first called. */

#include <dlfcn.h>
#include <stddef.h>

#define APART __attribute__((noinline, noclone))
/* Keeps a call from being the last thing that a function does. */
#define GO_ON __asm__ volatile("" ::: "memory")

typedef void call(void);

APART static void binds(void *library)
{
    call *calls_each = (call *)dlsym(library, "calls_each");

    if (calls_each != NULL)
        calls_each();
    GO_ON;
}

APART static void stubbed(void *library)
{
    call *through_stub = (call *)dlsym(library, "through_stub");

    if (through_stub != NULL)
        through_stub();
    GO_ON;
}

APART static void once(void)
{
    void *library = dlopen("/lib/lazy.so", RTLD_LAZY);

    if (library == NULL)
        return;
    binds(library);
    stubbed(library);
    dlclose(library);
}

int main(void)
{
    for (;;)
        once();
}
