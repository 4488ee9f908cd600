/* SIGINT, SIGTERM and SIGHUP ask a command to stop; the library saves its state and returns. */
#ifndef CLI_SIGNALS_H
#define CLI_SIGNALS_H

#include <signal.h>

/* Installs the handlers and returns the flag for glm_events.stop: the signal's number once it came.
 * The second signal of a kind kills the process as if nothing had been installed, for whoever does
 * not want to wait. A signal that was ignored when the command started (nohup) stays ignored. */
const volatile sig_atomic_t *signals_catch(void);

/* One more signal of the same meaning, after signals_catch. */
void signals_also(int number);

/* For work that outlives who reads its progress: a write to nobody fails and kills nothing. */
void signals_ignore_pipe(void);

#endif
