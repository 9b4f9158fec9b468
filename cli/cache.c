/* tenon cache: what earlier runs left for later ones, and getting rid of it. */
#include "cli.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

/* "today", "yesterday", "5 days ago" */
static const char *days_text(int64_t when, char text[32])
{
    int64_t days = ((int64_t)time(NULL) - when) / (24 * 60 * 60);
    if (when == 0)
        return "";
    if (days < 2)
        return days < 1 ? "today" : "yesterday";
    snprintf(text, 32, "%lld days ago", (long long)days);
    return text;
}

static void add_row(table *t, const tn_cache_kind *k)
{
    char size[32], oldest[32], newest[32];
    table_cell(t, "%s", k->name);
    table_cell(t, "%lld", (long long)k->files);
    table_cell(t, "%s", bytes_text((double)k->bytes, size));
    table_cell(t, "%s", days_text(k->oldest, oldest));
    table_cell(t, "%s", days_text(k->newest, newest));
    table_cell(t, "%s", k->summary);
}

static tn_status print_table(const char *folder, tn_cache_kind *const *kinds, size_t count, tn_error *err)
{
    static const char *const titles[] = {"KIND", "FILES", "SIZE", "OLDEST USE", "LAST USE", "WHAT"};
    table t;
    print_clean(stdout, folder, true);
    printf("\n\n");
    table_start(&t, sizeof titles / sizeof *titles, 6);
    for (size_t i = 0; i < sizeof titles / sizeof *titles; i++)
        table_cell(&t, "%s", titles[i]);
    tn_cache_kind all = {.name = "all", .summary = ""};
    for (size_t i = 0; i < count; i++) {
        add_row(&t, kinds[i]);
        all.files += kinds[i]->files;
        all.bytes += kinds[i]->bytes;
        all.oldest = kinds[i]->oldest && (!all.oldest || kinds[i]->oldest < all.oldest) ? kinds[i]->oldest : all.oldest;
        all.newest = kinds[i]->newest > all.newest ? kinds[i]->newest : all.newest;
    }
    add_row(&t, &all);
    return table_print(&t, err);
}

static json_t *json_time(int64_t seconds)
{
    return seconds ? json_integer(seconds) : json_null();
}

/* removed NULL: nothing was to be. */
static tn_status print_json(const char *folder, tn_cache_kind *const *kinds, size_t count,
                            const tn_cache_removed *removed, tn_error *err)
{
    json_t *list = json_array();
    for (size_t i = 0; i < count; i++)
        json_array_append_new(list,
                              json_pack("{s:s, s:I, s:I, s:o, s:o}", "kind", kinds[i]->name, "files",
                                        (json_int_t)kinds[i]->files, "bytes", (json_int_t)kinds[i]->bytes, "oldest",
                                        json_time(kinds[i]->oldest), "newest", json_time(kinds[i]->newest)));
    if (json_array_size(list) != count) {
        json_decref(list);
        return json_print(NULL, false, err);
    }
    json_t *root = json_pack("{s:s, s:o}", "folder", folder, "kinds", list);
    if (root && removed)
        json_object_set_new(
            root, "removed",
            json_pack("{s:I, s:I}", "files", (json_int_t)removed->files, "bytes", (json_int_t)removed->bytes));
    return json_print(root, false, err);
}

static tn_status print_cache(const options *o, const tn_cache_removed *removed, tn_error *err)
{
    tn_cache_kind **kinds = NULL;
    size_t count = 0;
    char size[32], *folder = tn_cache_folder(err);
    tn_status status = folder ? tn_cache_list(&kinds, &count, err) : err->code;
    if (status == TN_OK && option_given(o, OPT_JSON))
        status = print_json(folder, kinds, count, removed, err);
    else if (status == TN_OK && removed)
        printf("removed %lld file%s, %s\n", (long long)removed->files, removed->files == 1 ? "" : "s",
               bytes_text((double)removed->bytes, size));
    else if (status == TN_OK)
        status = print_table(folder, kinds, count, err);
    free(kinds);
    free(folder);
    return status;
}

/* Options that would have no effect are mistakes. */
static tn_status check_options(const options *o, const char *action, tn_error *err)
{
    bool prunes = action && !strcmp(action, "prune");
    if (action && !prunes && strcmp(action, "clear") != 0)
        return tn_fail(err, TN_E_USAGE, "cache", "'%s' is neither clear nor prune; see tenon cache --help", action);
    if (!action && option_given(o, OPT_KIND))
        return tn_fail(err, TN_E_USAGE, "cache", "--kind belongs to tenon cache clear and tenon cache prune");
    if (!prunes && (option_given(o, OPT_MAX_AGE) || option_given(o, OPT_MAX_MB)))
        return tn_fail(err, TN_E_USAGE, "cache", "--max-age and --max-mb belong to tenon cache prune");
    return TN_OK;
}

static tn_status run_cache(const options *o, tn_error *err)
{
    const char *action = o->argument_count > 0 ? o->argument[0] : NULL, *kind = option_text(o, OPT_KIND, NULL);
    tn_cache_removed removed = {.size = sizeof removed};
    tn_cache_limits limits = {.size = sizeof limits,
                              .kind = kind,
                              .max_age_days = option_integer(o, OPT_MAX_AGE, 0),
                              .max_bytes = option_integer(o, OPT_MAX_MB, 0) << 20};
    tn_status status = check_options(o, action, err);
    if (status == TN_OK && action)
        status =
            !strcmp(action, "clear") ? tn_cache_clear(kind, &removed, err) : tn_cache_prune(&limits, &removed, err);
    return status == TN_OK ? print_cache(o, action ? &removed : NULL, err) : status;
}

static const option_spec own_options[] = {
    {OPT_KIND, "kind", "KIND", 0, OPTION_TEXT, 0, 0, "clear or prune only this kind, by its name in the table"},
    {OPT_MAX_AGE, "max-age", "DAYS", 0, OPTION_INTEGER, 1, 36500,
     "prune what was not used for so many days; usually 90"},
    {OPT_MAX_MB, "max-mb", "N", 0, OPTION_INTEGER, 1, 1048576, "prune to so many MiB; usually 16"},
    {OPT_JSON, "json", NULL, 0, OPTION_FLAG, 0, 0, "an object instead of text"},
};

const command command_cache = {
    .name = "cache",
    .arguments = "[clear|prune] [--kind KIND] [--max-age DAYS] [--max-mb N] [--json]",
    .summary =
        "Shows, clears and prunes what is remembered from one run to the next. Whatever is removed is found out anew.",
    .options = own_options,
    .option_count = sizeof own_options / sizeof *own_options,
    .max_arguments = 1,
    .notes =
        "The folder is $XDG_CACHE_HOME/tenon or ~/.cache/tenon. It keeps to 90 days, 16 MiB and 4096 files by itself:\n"
        "what was not used for the longest time goes first. Only files of tenon's own are removed.",
    .example = "  tenon cache\n"
               "  tenon cache clear --kind times\n"
               "  tenon cache prune --max-age 30 --max-mb 4",
    .run = run_cache,
};
