/* Ctrl-C and its like, of work that has something to put in order first. */
#include "stop.h"

#include <signal.h>

static const int numbers[] = {SIGINT, SIGTERM, SIGHUP};
enum { NUMBERS = sizeof numbers / sizeof *numbers };

static volatile sig_atomic_t asked_by;

/* A second one, whichever it is, ends the program at once. */
static void on_signal(int number)
{
    struct sigaction now;
    asked_by = number;
    for (int i = 0; i < NUMBERS; i++)
        if (sigaction(numbers[i], NULL, &now) == 0 && now.sa_handler == on_signal)
            signal(numbers[i], SIG_DFL);
}

void stop_listen(void)
{
    const struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    struct sigaction before;
    for (int i = 0; i < NUMBERS; i++)
        if (sigaction(numbers[i], NULL, &before) == 0 && before.sa_handler != SIG_IGN)
            sigaction(numbers[i], &action, NULL);
}

int stop_asked(void)
{
    return asked_by;
}
