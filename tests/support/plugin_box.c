/* A temporary folder of plugins. */
#include "plugin_box.h"
#include "suite.h"
#include "test_kernels.h"

#include "tempdir.h"

#include <check.h>
#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* The plugins are linked with libtenon.so, the test programs with its objects: every global exists twice. And malloc
 * returns NULL for what no machine has, which is tested. */
const char *__asan_default_options(void);
__attribute__((visibility("default"))) const char *__asan_default_options(void)
{
    return "detect_odr_violation=0:allocator_may_return_null=1";
}

static char *root, *folder;

/* Plugins need libtenon.so, which every host has loaded before them. Here its symbols come after the program's own. */
static void load_library(void)
{
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s", plugin_box_built(""));
    char *slash = strstr(path, "/tests/bad_plugins/");
    if (!slash)
        abort();
    snprintf(slash, 32, "/libtenon.so.0");
    if (!dlopen(path, RTLD_NOW | RTLD_LOCAL)) {
        fprintf(stderr, "%s\n", dlerror());
        abort();
    }
}

void plugin_box_open(void)
{
    load_library();
    umask(022);
    root = tempdir_new();
    folder = tempdir_at(root, "plugins");
    if (mkdir(folder, 0755) != 0 || setenv("XDG_CACHE_HOME", tempdir_at(root, "cache"), 1) != 0)
        abort();
    setenv("TENON_MEASURE", "no", 1);       /* so that what is chosen does not depend on them */
    setenv("TENON_TRIAL_SECONDS", "60", 1); /* machines that run tests are busy */
}

const char *plugin_box_folder(void)
{
    return folder;
}

const char *plugin_box_root(void)
{
    return root;
}

const char *plugin_box_built(const char *name)
{
    static char path[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", path, sizeof path - 128);
    if (n <= 0)
        abort();
    path[n] = '\0';
    char *slash = strrchr(path, '/');
    snprintf(slash, 128, "/bad_plugins/%s.so", name);
    return path;
}

void plugin_box_add(const char *from, const char *as)
{
    tempdir_copy_file(plugin_box_built(from), folder, as);
}

static void free_config(void *config)
{
    tn_config_free(config);
}

tn_config *plugin_box_config(const char *json)
{
    tn_config *config = json ? test_config(json) : tn_config_new();
    if (!config || tn_config_set_plugins(config, folder, NULL) != TN_OK)
        abort();
    if (!json)
        suite_keep(config, free_config);
    return config;
}

tn_status plugin_box_scan(const tn_config *config, tn_error *err)
{
    if (config)
        return tn_scan(config, err);
    return tn_scan(plugin_box_config(NULL), err);
}

bool plugin_box_info(const char *name, tn_plugin_info *info)
{
    info->size = sizeof *info;
    const char *path = tempdir_at(folder, name);
    bool found = false;
    for (size_t i = 0; !found && tn_plugin_get(i, info) == TN_OK; i++)
        found = strcmp(info->file, path) == 0;
    return found;
}

tn_plugin_info plugin_box_of(const char *name)
{
    tn_plugin_info info;
    ck_assert_msg(plugin_box_info(name, &info), "%s is not listed", name);
    return info;
}
