/* One implementation with one dtype, at all of its sites. */
#include "base/clock.h"
#include "base/text.h"
#include "check/draw_site.h"
#include "eager/eager.h"
#include "op/match.h"
#include "plugin/registry.h"
#include "verify/verify_plugin.h"
#include "verify/verify_plugin_sites.h"
#include "verify/verify_plugin_try.h"

#include <string.h>

enum { MOST_FAILURES = 3, OTHER_TEAM = 3 };

typedef struct texts {
    char shape[256], worst[256], reason[768];
} texts;

/* One thread, all of them, and a number that divides nothing; twice as many where all are that many. */
static size_t list_teams(const verify_plugin *k, int32_t teams[TRY_TEAMS])
{
    int32_t all = k->options.threads > 0 ? k->options.threads : tn_thread_count();
    size_t count = 0;
    teams[count++] = 1;
    if (all > 1 && all != OTHER_TEAM)
        teams[count++] = all;
    teams[count++] = all == OTHER_TEAM ? 2 : OTHER_TEAM;
    if (all == OTHER_TEAM)
        teams[count++] = all;
    return count;
}

/* Draws the site twice, with different weights, and tries it. */
static tn_status try_drawn(const verify_plugin *k, const tn_impl *impl, const tn_site *like, verify_plugin_try *t,
                           tn_error *err)
{
    draw_site d = {0}, other = {0};
    char declined[256];
    tn_status status = draw_site_open(&d, like, k->options.seed, err);
    if (status == TN_OK)
        status = draw_site_open(&other, like, ~k->options.seed, err);
    if (status == TN_OK && match_site(&d.site, impl, declined, sizeof declined) != TN_OK)
        status = tn_fail(err, TN_DECLINED, like->path, "%s", declined);
    *t = (verify_plugin_try){.device = &cpu_device,
                             .site = &d.site,
                             .other = &other.site,
                             .impl = impl,
                             .seed = k->options.seed,
                             .quick = k->options.quick};
    t->team_count = list_teams(k, t->teams);
    if (status == TN_OK)
        status = verify_plugin_try_site(t, err);
    draw_site_close(&d);
    draw_site_close(&other);
    return status == TN_E_USAGE ? TN_DECLINED : status;
}

/* Adds what became of a site to the row of its implementation. false: the process cannot go on. */
static bool count_site(tn_check_row *row, const tn_check_row *one, tn_status status, texts *kept)
{
    if (status != TN_OK && status != TN_DECLINED && status != TN_E_KERNEL && status != TN_E_VERIFY)
        return false;
    row->declined += status == TN_DECLINED;
    row->sites += status != TN_DECLINED;
    row->failed += one->result == TN_CHECK_FAILED;
    row->apart += one->apart;
    bool first_failure = one->result == TN_CHECK_FAILED && row->failed == 1;
    if (first_failure || (status == TN_DECLINED && row->declined == 1 && row->failed == 0)) {
        text_cut(kept->shape, sizeof kept->shape, "%s", one->shape);
        text_cut(kept->reason, sizeof kept->reason, "%s", one->reason);
        row->site = one->site;
    }
    if (one->worst > row->worst) {
        row->worst = one->worst;
        row->worst_tokens = one->worst_tokens;
        text_cut(kept->worst, sizeof kept->worst, "%s", one->shape);
    }
    row->max_tokens = one->max_tokens > row->max_tokens ? one->max_tokens : row->max_tokens;
    return true;
}

static tn_check_row start_row(const verify_plugin *k, const registry_kernel *kernel, int32_t index, tn_dtype dtype)
{
    const tn_impl *impl = &kernel->kernel.impls[index];
    int32_t teams[TRY_TEAMS], most = 1;
    for (size_t i = list_teams(k, teams); i-- > 0;)
        most = teams[i] > most ? teams[i] : most;
    return (tn_check_row){.size = sizeof(tn_check_row),
                          .kernel = kernel->kernel.id,
                          .op = impl->op,
                          .impl = index,
                          .dtype = dtype,
                          .shape = "",
                          .min_threads = 1,
                          .max_threads = most,
                          .gradients = impl->backward != NULL,
                          .worst_shape = "",
                          .reason = ""};
}

/* One site: its row, handed over where that was asked for. */
static tn_status try_site(verify_plugin *k, const tn_impl *impl, const tn_site *like, tn_check_row *row, texts *kept,
                          tn_error *err)
{
    char shape[256];
    tn_error why = TN_ERROR_INIT;
    verify_plugin_try t;
    tn_check_row one = *row;
    verify_plugin_sites_text(like, shape, sizeof shape);
    tn_status status = try_drawn(k, impl, like, &t, &why);
    one.kind = TN_CHECK_SITE;
    one.result = status == TN_OK ? TN_CHECK_PASSED : status == TN_DECLINED ? TN_CHECK_DECLINED : TN_CHECK_FAILED;
    one.site = k->site;
    one.shape = one.worst_shape = shape;
    one.sites = 1;
    one.apart = status == TN_OK && t.apart;
    one.worst = t.figures.worst;
    one.worst_tokens = t.worst_tokens;
    one.max_tokens = t.most_tokens;
    one.reason = why.message;
    if (!count_site(row, &one, status, kept))
        return tn_fail(err, status, row->kernel, "%s", why.message);
    return k->options.each_site ? verify_plugin_report(k, &one) : TN_OK;
}

tn_status verify_plugin_impl_try(verify_plugin *k, const registry_kernel *kernel, int32_t index, tn_dtype dtype,
                                 tn_error *err)
{
    const tn_impl *impl = &kernel->kernel.impls[index];
    tn_site sites[VERIFY_PLUGIN_SITES_MAX];
    size_t count = verify_plugin_sites_draw(impl, dtype, k->options.quick, sites);
    texts kept = {0};
    tn_check_row row = start_row(k, kernel, index, dtype);
    tn_status status = TN_OK;
    int64_t first = k->site;
    bool any = k->options.site == 0 || (k->options.site > first && k->options.site <= first + (int64_t)count);
    bool hangs = false;
    for (size_t i = 0; i < count && status == TN_OK && row.failed < MOST_FAILURES && !hangs; i++) {
        double begin = clock_seconds();
        k->site = first + (int64_t)i + 1;
        if (any && (k->options.site == 0 || k->options.site == k->site))
            status = try_site(k, impl, &sites[i], &row, &kept, err);
        hangs = row.failed > 0 && clock_seconds() - begin > CHECK_LEAST_SECONDS;
    }
    k->site = first + (int64_t)count;
    if (status != TN_OK || !any)
        return status;
    row.kind = TN_CHECK_IMPL;
    row.result = row.failed > 0 ? TN_CHECK_FAILED : row.sites > 0 ? TN_CHECK_PASSED : TN_CHECK_DECLINED;
    row.shape = kept.shape;
    row.worst_shape = kept.worst;
    row.reason = kept.reason;
    k->tried++;
    k->failed += row.failed > 0;
    status = verify_plugin_report(k, &row);
    if (status == TN_OK && k->options.bench && row.result == TN_CHECK_PASSED)
        status = verify_plugin_bench_impl(k, kernel, index, dtype, err);
    return status;
}
