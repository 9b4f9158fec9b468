/* How many threads there should be, by what made-up systems tell. */
#include "device/processors.h"
#include "suite.h"
#include "tempdir.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static char *root;

static void setup(void)
{
    root = tempdir_new();
}

/* A line in root/name, whose folders are made. */
static void put(const char *name, const char *text)
{
    char path[1024];
    snprintf(path, sizeof path, "%s/%s", root, name);
    for (char *slash = path + strlen(root) + 1; (slash = strchr(slash, '/')); slash++) {
        *slash = '\0';
        mkdir(path, 0700);
        *slash = '/';
    }
    tempdir_write(path, text, strlen(text));
}

static void put_siblings(int cpu, const char *list)
{
    char name[128];
    snprintf(name, sizeof name, "sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", cpu);
    put(name, list);
}

/* Processors of the list, which ends with -1. */
static int32_t count(const int *allowed)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    for (; *allowed >= 0; allowed++)
        CPU_SET((size_t)*allowed, &set);
    return processors_count(root, &set);
}

static const int four[] = {0, 1, 2, 3, -1};

START_TEST(a_system_that_tells_nothing)
{
    ck_assert_int_eq(count(four), 4);
    ck_assert_int_eq(count((int[]){5, -1}), 1);
    ck_assert_int_eq(count((int[]){-1}), 1);
}
END_TEST

START_TEST(hardware_threads_share_a_core)
{
    put_siblings(0, "0,2\n");
    put_siblings(2, "0,2\n");
    put_siblings(1, "1,3\n");
    put_siblings(3, "1,3\n");
    ck_assert_int_eq(count(four), 2);
    ck_assert_int_eq(count((int[]){2, 3, -1}), 2); /* the lower ones are not ours */
    ck_assert_int_eq(count((int[]){0, 2, -1}), 1);
    for (int i = 0; i < 4; i++)
        put_siblings(i, i < 2 ? "0-1\n" : "2-3\n");
    ck_assert_int_eq(count(four), 2);
    for (int i = 0; i < 4; i++)
        put_siblings(i, "nonsense\n");
    ck_assert_int_eq(count(four), 4);
}
END_TEST

START_TEST(version_2_groups_limit)
{
    put("proc/self/cgroup", "0::/a/b\n");
    put("sys/fs/cgroup/a/b/cpu.max", "max 100000\n");
    ck_assert_int_eq(count(four), 4);
    put("sys/fs/cgroup/a/cpu.max", "250000 100000\n");
    ck_assert_int_eq(count(four), 2);
    put("sys/fs/cgroup/a/b/cpu.max", "50000 100000\n");
    ck_assert_int_eq(count(four), 1);
    put("sys/fs/cgroup/a/b/cpu.max", "900000 100000\n");
    put("sys/fs/cgroup/a/cpu.max", "junk\n");
    ck_assert_int_eq(count(four), 4);
}
END_TEST

/* In a container the group's path is the host's, and what is mounted is the group itself. */
START_TEST(the_mount_is_looked_at)
{
    put("proc/self/cgroup", "0::/docker/0123\n");
    put("sys/fs/cgroup/cpu.max", "300000 100000\n");
    ck_assert_int_eq(count(four), 3);
}
END_TEST

START_TEST(version_1_groups_limit)
{
    put("proc/self/cgroup", "9:cpuset:/x\n4:cpuacct,cpu:/job\n0::/\n");
    put("sys/fs/cgroup/cpu/job/cpu.cfs_quota_us", "-1\n");
    put("sys/fs/cgroup/cpu/job/cpu.cfs_period_us", "100000\n");
    ck_assert_int_eq(count(four), 4);
    put("sys/fs/cgroup/cpu/job/cpu.cfs_quota_us", "200000\n");
    ck_assert_int_eq(count(four), 2);
    put("proc/self/cgroup", "9:cpuset:/job\n");
    ck_assert_int_eq(count(four), 4);
}
END_TEST

int main(void)
{
    TCase *tc = suite_open("processors", 0);
    tcase_add_checked_fixture(tc, setup, NULL);
    suite_add(tc, a_system_that_tells_nothing, hardware_threads_share_a_core, version_2_groups_limit,
              the_mount_is_looked_at, version_1_groups_limit);
    return suite_run();
}
