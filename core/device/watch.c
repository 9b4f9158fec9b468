/* Looking at the process before and after foreign code runs in it. What is seen is kept in one place, so that nothing
 * is allocated while a model runs. */
#include "device/watch.h"

#include "device/device.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

static struct {
    pthread_mutex_t lock; /* held from before to after                                             */
    hoststate *state;
} seen = {.lock = PTHREAD_MUTEX_INITIALIZER};

watch_look watch_before(bool whole)
{
    watch_look look = {.control = hoststate_control()};
    threads_changed(); /* by whoever used the team before                                          */
    if (!whole || pthread_mutex_trylock(&seen.lock) != 0)
        return look;
    if (seen.state)
        hoststate_again(seen.state);
    else
        seen.state = hoststate_save();
    look.state = seen.state;
    threads_watch(look.state != NULL);
    if (!look.state)
        pthread_mutex_unlock(&seen.lock);
    return look;
}

static void add(char *what, size_t size, const char *name)
{
    size_t used = strlen(what);
    if (used < size && !strstr(what, name))
        snprintf(what + used, size - used, "%s%s", used ? ", " : "", name);
}

bool watch_after(const watch_look *look, char *what, size_t size)
{
    unsigned workers = threads_changed();
    what[0] = '\0';
    if (look->state) {
        hoststate_differs(look->state, true, what, size);
        hoststate_release(look->state);
        threads_watch(false);
        pthread_mutex_unlock(&seen.lock);
    } else if (hoststate_control() != look->control) {
        hoststate_set_control(look->control);
        workers |= THREADS_CONTROL;
    }
    if (workers & THREADS_CONTROL)
        add(what, size, "floating-point control");
    if (workers & THREADS_MASK)
        add(what, size, "signal mask");
    return what[0] != '\0';
}
