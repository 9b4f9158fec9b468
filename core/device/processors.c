/* What the system tells of cores in /sys, and of granted time in the files of control groups, version 2 (cpu.max) and
 * version 1 (cpu.cfs_quota_us). */
#include "device/processors.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LINE = 4096, FOLDER = LINE + 256, PATH = FOLDER + 64 };

/* The first line of a file, without its end. */
static bool read_line(const char *path, char line[LINE])
{
    FILE *f = fopen(path, "re");
    if (!f)
        return false;
    bool any = fgets(line, LINE, f) != NULL;
    fclose(f);
    if (any)
        line[strcspn(line, "\n")] = '\0';
    return any;
}

/* ---- cores ------------------------------------------------------------------------------------------------- */

/* Does the list "0-1,4" have an allowed processor below cpu? */
static bool has_lower(const char *list, int cpu, const cpu_set_t *allowed)
{
    while (*list) {
        char *end;
        long first = strtol(list, &end, 10), last = first;
        if (end == list)
            return false;
        if (*end == '-')
            last = strtol(end + 1, &end, 10);
        for (long i = first < 0 ? 0 : first; i <= last && i < cpu; i++)
            if (CPU_ISSET((size_t)i, allowed))
                return true;
        list = *end == ',' ? end + 1 : "";
    }
    return false;
}

static int32_t count_cores(const char *root, const cpu_set_t *allowed)
{
    char path[PATH], line[LINE];
    int32_t cores = 0;
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (!CPU_ISSET((size_t)cpu, allowed))
            continue;
        snprintf(path, sizeof path, "%s/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", root, cpu);
        cores += !read_line(path, line) || !has_lower(line, cpu, allowed);
    }
    return cores;
}

/* ---- granted time --------------------------------------------------------------------------------------------- */

/* Processors' worth of time that the group at this folder is granted; 0: it does not say. */
static double quota_of(const char *folder)
{
    char path[PATH], line[LINE];
    double quota = 0, period = 0;
    snprintf(path, sizeof path, "%s/cpu.max", folder);
    if (read_line(path, line) && sscanf(line, "%lf %lf", &quota, &period) == 2 && quota > 0 && period > 0)
        return quota / period;
    snprintf(path, sizeof path, "%s/cpu.cfs_quota_us", folder);
    if (!read_line(path, line) || sscanf(line, "%lf", &quota) != 1 || quota <= 0)
        return 0;
    snprintf(path, sizeof path, "%s/cpu.cfs_period_us", folder);
    return read_line(path, line) && sscanf(line, "%lf", &period) == 1 && period > 0 ? quota / period : 0;
}

/* The least of a group and all those around it, up to the mount; in a container its path may lie outside of what is
 * mounted, and then the mount itself is the group. */
static double least_quota(const char *mount, char *group)
{
    double least = 0;
    for (;;) {
        char folder[FOLDER];
        snprintf(folder, sizeof folder, "%s%s", mount, group);
        double quota = quota_of(folder);
        if (quota > 0 && (least == 0 || quota < least))
            least = quota;
        char *slash = strrchr(group, '/');
        if (!slash)
            return least;
        *slash = '\0';
    }
}

static bool names_cpu(const char *controllers, size_t length)
{
    for (const char *at = controllers; at < controllers + length;) {
        size_t n = strcspn(at, ",:");
        if (n == 3 && !strncmp(at, "cpu", 3))
            return true;
        at += n + 1;
    }
    return false;
}

/* Over the groups of all hierarchies: lines of "number:controllers:path". 0: nothing is limited. */
static double granted(const char *root)
{
    char path[PATH], line[LINE], mount[128];
    double least = 0;
    if (strlen(root) + sizeof "/sys/fs/cgroup/cpu" > sizeof mount)
        return 0;
    snprintf(path, sizeof path, "%s/proc/self/cgroup", root);
    FILE *f = fopen(path, "re");
    while (f && fgets(line, sizeof line, f)) {
        line[strcspn(line, "\n")] = '\0';
        char *controllers = strchr(line, ':'), *group = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!group)
            continue;
        size_t length = (size_t)(group - controllers) - 1;
        if (length > 0 && !names_cpu(controllers + 1, length))
            continue;
        snprintf(mount, sizeof mount, "%s/sys/fs/cgroup%s", root, length > 0 ? "/cpu" : "");
        double quota = least_quota(mount, group + 1);
        if (quota > 0 && (least == 0 || quota < least))
            least = quota;
    }
    if (f)
        fclose(f);
    return least;
}

int32_t processors_count(const char *root, const cpu_set_t *allowed)
{
    int32_t cores = count_cores(root, allowed);
    double time = granted(root);
    if (time > 0 && time < cores)
        cores = (int32_t)time;
    return cores > 1 ? cores : 1;
}
