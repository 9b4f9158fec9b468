/* Models of tests/data/models, their sessions and their kernels. */
#include "test_models.h"

#include "open/model.h"
#include "suite.h"

#include <check.h>
#include <stdio.h>
#include <string.h>

tn_model *test_model_open_as(const char *name, const tn_model_options *options)
{
    char path[4300];
    tn_error err = TN_ERROR_INIT;
    snprintf(path, sizeof path, "%s%s", strchr(name, '/') ? "" : "tests/data/models/", name);
    tn_model *m = tn_model_open(path, options, &err);
    ck_assert_msg(m != NULL, "%s: %s", err.where, err.message);
    return m;
}

tn_model *test_model_open(const char *name, const char *dtype)
{
    return test_model_open_with(name, .dtype = dtype);
}

static void close_model(void *m)
{
    tn_model_close(m);
}

tn_model *test_model_kept(tn_model *m)
{
    suite_keep(m, close_model);
    return m;
}

tn_session *test_model_session_as(tn_model *m, const tn_session_options *options)
{
    tn_error err = TN_ERROR_INIT;
    tn_session *s = tn_session_new(m, options, &err);
    ck_assert_msg(s != NULL, "%s: %s", err.where, err.message);
    return s;
}

static void free_session(void *s)
{
    tn_session_free(s);
}

tn_session *test_session_kept(tn_session *s)
{
    suite_keep(s, free_session);
    return s;
}

void test_model_run_as(tn_session *s, int64_t tokens, const int64_t *ids, const tn_outputs *outputs)
{
    tn_error err = TN_ERROR_INIT;
    tn_batch batch = {.size = sizeof batch, .rows = 1, .tokens = tokens, .ids = ids};
    ck_assert_msg(tn_session_run(s, &batch, outputs, &err) == TN_OK, "%s: %s", err.where, err.message);
}

int64_t test_model_vocab(const tn_model *m)
{
    tn_model_info info = {.size = sizeof info};
    ck_assert_int_eq(tn_model_get_info(m, &info), TN_OK);
    return info.vocab;
}

tn_report *test_model_report(tn_model *m, const tn_config *config, const char *spec)
{
    tn_error err = TN_ERROR_INIT;
    tn_report *report = NULL;
    ck_assert_msg(tn_apply_kernels(m, config, spec, &report, &err) == TN_OK, "%s: %s", err.where, err.message);
    return report;
}

static void free_report(void *report)
{
    tn_report_free(report);
}

tn_report *test_report(tn_model *m, const tn_config *config, const char *spec)
{
    tn_report *report = test_model_report(m, config, spec);
    suite_keep(report, free_report);
    return report;
}

tn_report *test_plan(tn_model *m, const tn_config *config, const char *spec)
{
    tn_error err = TN_ERROR_INIT;
    tn_report *report = tn_model_plan(m, config, spec, &err);
    ck_assert_msg(report != NULL, "%s: %s", err.where, err.message);
    suite_keep(report, free_report);
    return report;
}

void test_model_apply(tn_model *m, const tn_config *config, const char *spec)
{
    tn_error err = TN_ERROR_INIT;
    ck_assert_msg(tn_apply_kernels(m, config, spec, NULL, &err) == TN_OK, "%s: %s", err.where, err.message);
}

const graph_site *test_model_site(const tn_model *m, const char *path, tn_op op)
{
    for (size_t i = 0; i < m->target.graph->site_count; i++)
        if (!strcmp(m->target.graph->sites[i]->site.path, path) && m->target.graph->sites[i]->site.op == op)
            return m->target.graph->sites[i];
    ck_abort_msg("no site %s", path);
}

size_t test_model_bound(const tn_model *m)
{
    size_t n = 0;
    for (size_t i = 0; i < m->target.graph->site_count; i++)
        n += m->target.graph->sites[i]->bound.impl != NULL;
    return n;
}

int64_t test_model_sites_of(const tn_report *report, const char *kernel)
{
    int64_t n = 0;
    for (size_t i = 0; i < report->site_count; i++)
        n += report->sites[i]->kernel && !strcmp(report->sites[i]->kernel, kernel);
    return n;
}
