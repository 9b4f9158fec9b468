/* Had others the processors while something was timed? The system tells of each thread how long it was ready to run and
 * did not: the second number of /proc/PROCESS/task/THREAD/schedstat, in nanoseconds. */
#include "select/measure.h"

#include <dirent.h>
#include <stdio.h>

static double waited_of(const char *tasks, const char *thread)
{
    char path[512];
    unsigned long long ran, waited = 0;
    snprintf(path, sizeof path, "%s/%s/schedstat", tasks, thread);
    FILE *file = fopen(path, "re");
    if (file && fscanf(file, "%llu %llu", &ran, &waited) != 2)
        waited = 0;
    if (file)
        fclose(file);
    return 1e-9 * (double)waited;
}

double measure_waited_in(const char *tasks)
{
    double sum = 0;
    DIR *folder = opendir(tasks);
    for (struct dirent *entry; folder && (entry = readdir(folder));)
        sum += entry->d_name[0] != '.' ? waited_of(tasks, entry->d_name) : 0;
    if (folder)
        closedir(folder);
    return sum;
}

double measure_waited(const apply_target *target)
{
    return target->waited ? target->waited() : measure_waited_in("/proc/self/task");
}
