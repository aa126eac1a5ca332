/*
 * kvmprof.h: what libkvmprof has beyond the functions of the manual pages.
 */
#ifndef KVMPROF_KVMPROF_H
#define KVMPROF_KVMPROF_H

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Says at which ticks the calls of profil() and pcsample() that follow in this process store: with `on` 0 at 100 a second
 * on each CPU, as the manual pages have it, which is so at the start; else at every tick of kvmprof's clock
 * (kvmprof run --hz). Returns what was set before, 0 or 1. It can't fail, and may be called in a signal handler.
 */
int kvmprof_profil_every_tick(int on);

#ifdef __cplusplus
}
#endif

#endif /* KVMPROF_KVMPROF_H */
