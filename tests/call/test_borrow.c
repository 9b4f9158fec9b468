/* Models over borrowed memory: the same sites as the folder's, and what cannot be used is declined by name. */
#include "check/inputs.h"
#include "lent_model.h"
#include "open/model.h"
#include "optest.h"
#include "suite.h"
#include "test_kernels.h"
#include "test_models.h"

#include <check.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- golden models ---------------------------------------------------------------------------------------- */

enum { MOST_FOLDERS = 256 };
static char *folders[MOST_FOLDERS];
static int folder_count;

static int compare_folders(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Those with plain weights. */
static void find_folders(void)
{
    DIR *dir = opendir("tests/data/models");
    for (const struct dirent *e; dir && (e = readdir(dir)) && folder_count < MOST_FOLDERS;) {
        char path[512], command[1024];
        snprintf(path, sizeof path, "tests/data/models/%s/config.json", e->d_name);
        snprintf(command, sizeof command, "grep -q quantization_config %s", path);
        if (e->d_name[0] == '.' || access(path, R_OK) != 0 || system(command) == 0)
            continue;
        folders[folder_count++] = strdup(e->d_name);
    }
    if (dir)
        closedir(dir);
    qsort(folders, (size_t)folder_count, sizeof *folders, compare_folders);
}

static void free_folders(void)
{
    for (int i = 0; i < folder_count; i++)
        free(folders[i]);
}

/* Performs the site of both models, and compares the bits. */
static void compare_site(tn_model *a, tn_model *b, const graph_site *site, const char *folder)
{
    tn_error err = TN_ERROR_INIT;
    inputs in;
    ck_assert_int_eq(inputs_draw(&in, &site->site, 1, 3, 7, &err), TN_OK);
    tn_tensor out[2][TN_CALL_TENSORS];
    tn_model *models[2] = {a, b};
    for (int m = 0; m < 2; m++) {
        for (int i = 0; i < in.call.out_count; i++)
            out[m][i] = optest_zeros(in.call.out[i].dtype, in.call.out[i].ndim, in.call.out[i].shape);
        tn_status status = tn_site_forward(models[m], site->site.path, site->site.op, in.call.in, in.call.in_count,
                                           out[m], in.call.out_count, &err);
        ck_assert_msg(status == TN_OK, "%s: %s: %s", folder, err.where, err.message);
    }
    for (int i = 0; i < in.call.out_count; i++)
        ck_assert_msg(
            !memcmp(out[0][i].data, out[1][i].data, tn_dtype_bytes(out[0][i].dtype, tn_tensor_count(&out[0][i]))),
            "%s: %s %s differs", folder, tn_op_name(site->site.op), site->site.path);
    inputs_close(&in);
}

START_TEST(every_golden_model_is_the_folders)
{
    const char *folder = folders[_i];
    lent_model *l = lent_of(folder);
    tn_model *live = lent_open(l, .weights_change = true, .partial = true, .per_module = true);
    tn_model *file = test_model(folder, .dtype = tn_dtype_name(live->dtype));
    tn_model *all = lent_open(l, .device = NULL);
    const graph *g = file->target.graph, *h = live->target.graph;
    ck_assert_uint_eq(g->site_count, all->target.graph->site_count);
    ck_assert_uint_eq(g->site_count, h->site_count);
    size_t lacking = 0;
    for (size_t i = 0; i < g->site_count; i++) {
        ck_assert_str_eq(g->sites[i]->site.path, h->sites[i]->site.path);
        ck_assert(!all->target.graph->sites[i]->lacking);
        compare_site(file, all, g->sites[i], folder);
        if (!h->sites[i]->lacking)
            compare_site(file, live, g->sites[i], folder);
        else if (lacking++ == 0 || getenv("TENON_TELL"))
            fprintf(stderr, "%s: %s: %s\n", folder, h->sites[i]->site.path, h->sites[i]->declined);
    }
    ck_assert_uint_lt(lacking, g->site_count);
}
END_TEST

int main(void)
{
    find_folders();
    TCase *t = suite_open("borrow", 0);
    tcase_add_loop_test(t, every_golden_model_is_the_folders, 0, folder_count);
    int failed = suite_run();
    free_folders();
    return failed;
}
