/* Counting threads: the links of /proc/self/task, a folder with one folder for each. */
#include "device/tasks.h"

#include <sys/stat.h>
#include <unistd.h>

size_t tasks_count(void)
{
    struct stat st;
    return stat("/proc/self/task", &st) == 0 && st.st_nlink > 2 ? (size_t)st.st_nlink - 2 : 0;
}

size_t tasks_left(size_t before)
{
    enum { STEPS = 100 }; /* milliseconds */
    size_t now = tasks_count();
    for (int i = 0; i < STEPS && before > 0 && now > before; i++) {
        usleep(1000);
        now = tasks_count();
    }
    return before > 0 && now > before ? now - before : 0;
}
