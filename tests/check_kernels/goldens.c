/* Going through a folder of golden files. Nothing in it is trusted: a case that makes a test crash fails. */
#include "goldens.h"

#include "guarded.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FILES_MAX = 256 };

typedef struct golden_file {
    tn_safetensors *file;
    char op[128]; /* the name without .safetensors                                               */
    int64_t cases;
    bool claimed;
} golden_file;

static struct {
    golden_file files[FILES_MAX];
    size_t count;
} folder;

static int is_golden(const struct dirent *entry)
{
    size_t length = strlen(entry->d_name), suffix = strlen(".safetensors");
    return length > suffix && length < sizeof folder.files->op &&
           !strcmp(entry->d_name + length - suffix, ".safetensors");
}

static int64_t count_cases(const tn_safetensors *file)
{
    long long n, most = -1;
    for (size_t i = 0; i < tn_safetensors_count(file); i++)
        if (sscanf(tn_safetensors_name(file, i), "%lld.", &n) == 1 && n > most && n < 100000)
            most = n;
    return most + 1;
}

static void open_file(check_state *s, const char *path, const char *name)
{
    char full[4096];
    tn_error err = TN_ERROR_INIT;
    golden_file *g = &folder.files[folder.count];
    snprintf(full, sizeof full, "%s/%s", path, name);
    *g = (golden_file){.file = tn_safetensors_open(full, &err)};
    snprintf(g->op, sizeof g->op, "%.*s", (int)(strlen(name) - strlen(".safetensors")), name);
    if (g->file && (g->cases = count_cases(g->file)) > 0) {
        folder.count++;
        return;
    }
    printf("FAILED %s: %s\n", full, g->file ? "no tensor is called NUMBER.NAME: this is no golden file" : err.message);
    s->failed++;
    tn_safetensors_close(g->file);
}

bool goldens_open(check_state *s, const char *path)
{
    struct dirent **names;
    int found = scandir(path, &names, is_golden, alphasort);
    if (found < 0)
        fprintf(stderr, "check_kernels: %s: %s\n", path, strerror(errno));
    if (found == 0)
        fprintf(stderr, "check_kernels: %s: no golden files (*.safetensors) here\n", path);
    for (int i = 0; i < found; i++) {
        if (folder.count < FILES_MAX)
            open_file(s, path, names[i]->d_name);
        free(names[i]);
    }
    if (found >= 0)
        free(names);
    return found > 0;
}

typedef struct golden_case {
    check_state *s;
    const check_test *test;
    const golden_file *file;
    int64_t n;
    tn_dtype dtype;
    bool claimed;
} golden_case;

static void run_case(void *ctx)
{
    golden_case *c = ctx;
    c->claimed = c->test->golden(c->s, c->file->op, c->file->file, c->n, c->dtype);
}

void goldens_run(check_state *s, const check_test *test)
{
    for (size_t f = 0; test->golden && f < folder.count; f++)
        for (int d = 0; d < CHECK_DTYPES; d++)
            for (int64_t n = 0; n < folder.files[f].cases; n++) {
                golden_file *g = &folder.files[f];
                golden_case c = {s, test, g, n, check_dtypes[d], false};
                char crash[256] = "";
                if (!group_begin(s, "%s %lld %s %s", g->op, (long long)n, tn_dtype_name(check_dtypes[d]),
                                 s->tier->name))
                    continue;
                golden_begin();
                guarded_call(run_case, &c, s->group, NULL, 0, crash, sizeof crash);
                golden_end(s, c.claimed, crash);
                g->claimed = g->claimed || s->group_cases;
                group_end(s);
            }
}

void goldens_close(check_state *s, bool all_tests)
{
    for (size_t f = 0; f < folder.count; f++) {
        if (!folder.files[f].claimed && all_tests) {
            printf("SKIPPED %s: no test reads it\n", folder.files[f].op);
            s->skipped++;
        }
        tn_safetensors_close(folder.files[f].file);
    }
    folder.count = 0;
}
