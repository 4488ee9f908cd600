#include "cli/signals.h"

#include <stddef.h>

static volatile sig_atomic_t caught;

static void remember(int number)
{
    caught = number;
}

void signals_also(int number)
{
    struct sigaction old;
    if (sigaction(number, NULL, &old) != 0 || old.sa_handler == SIG_IGN)
        return;
    /* SA_RESTART: the stop is seen between pieces of work, not by every single call. */
    struct sigaction new = {
        .sa_handler = remember, .sa_flags = SA_RESTART | (int)SA_RESETHAND};
    sigemptyset(&new.sa_mask);
    sigaction(number, &new, NULL);
}

const volatile sig_atomic_t *signals_catch(void)
{
    static const int numbers[] = {SIGINT, SIGTERM, SIGHUP};
    caught = 0;
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        signals_also(numbers[i]);
    return &caught;
}

void signals_ignore_pipe(void)
{
    signal(SIGPIPE, SIG_IGN);
}
