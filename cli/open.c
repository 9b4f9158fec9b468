/* What comes before the work of most sub-commands: configuration, plugins, model, kernels; each with its notes. */
#include "cli.h"

#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- where plugins are ------------------------------------------------------------------------ */

#ifndef TN_SYSCONFDIR
#define TN_SYSCONFDIR "/usr/local/etc"
#define TN_BIN_TO_LIB "../lib"
#endif
static const char installed_plugins[] = TN_BIN_TO_LIB "/tenon/plugins";

/* A folder as seen from the one this program is in; NULL when there is none, or err says why that is not known. Owned.
 */
static char *own_folder(const char *place, tn_error *err)
{
    char exe[4096];
    ssize_t length = readlink("/proc/self/exe", exe, sizeof exe - sizeof installed_plugins);
    if (length <= 0) {
        tn_fail(err, TN_E_KERNEL, "/proc/self/exe",
                "cannot be read: %s; without it the plugins beside this program are not found: mount /proc, or name "
                "their folder with --only-plugins",
                length < 0 ? strerror(errno) : "it is empty");
        return NULL;
    }
    exe[length] = '\0';
    char *name = strrchr(exe, '/');
    if (!name)
        return NULL;
    snprintf(name + 1, sizeof exe - (size_t)(name + 1 - exe), "%s", place);
    char *folder = realpath(exe, NULL);
    if (!folder && errno != ENOENT && errno != ENOTDIR)
        tn_fail(err, errno == ENOMEM ? TN_E_MEMORY : TN_E_KERNEL, exe, "cannot be looked at: %s", strerror(errno));
    return folder;
}

static bool is_installed_default(const char *file)
{
    return file && strcmp(file, TN_SYSCONFDIR "/tenon/kernels.json") == 0;
}

/* Where nobody names a folder (an empty list says that there are none), those that belong to this very program. A build
 * tree has one beside the program, and that one also comes before what the installed default names: whoever builds a
 * tree wants to see that tree. */
static tn_status add_own_folders(tn_config *config, const options *o, tn_error *err)
{
    tn_error why = TN_ERROR_INIT;
    bool named = tn_config_says_plugins(config);
    if (named && (tn_config_folder_count(config) == 0 || !is_installed_default(tn_config_file(config))))
        return TN_OK;
    char *folder = own_folder("plugins", &why);
    if (!folder && !named)
        folder = own_folder(installed_plugins, &why);
    tn_status status = folder ? tn_config_set_plugins(config, folder, err) : TN_OK;
    if (why.code == TN_E_MEMORY)
        status = tn_fail(err, why.code, why.where, "%s", why.message);
    else if (why.code && !folder && strcmp(tn_config_kernels(config), "none") != 0)
        note(o, WARNING "%s: %s", why.where, why.message);
    free(folder);
    return status;
}

static bool is_only(const options *o)
{
    return option_given(o, OPT_ONLY_PLUGINS);
}

/* Those of the command line come before the others: of two plugins with the same kernel the first one counts. */
static tn_status set_folders(tn_config *config, const options *o, tn_error *err)
{
    tn_status status = is_only(o) ? TN_OK : add_own_folders(config, o, err);
    if (status || !o->plugin_count)
        return status;
    size_t given = o->plugin_count, count = given + (is_only(o) ? 0 : tn_config_folder_count(config)), n = 0;
    char **folders = calloc(count, sizeof *folders);
    if (!folders)
        return tn_fail(err, TN_E_MEMORY, "plugins", "out of memory");
    for (; n < count && status == TN_OK; n++) {
        folders[n] = n < given ? absolute_folder(o->plugins[n], err) : strdup(tn_config_folder(config, n - given));
        if (!folders[n])
            status = n < given ? TN_E_KERNEL : tn_fail(err, TN_E_MEMORY, "plugins", "out of memory");
    }
    for (size_t i = 0; i < count && status == TN_OK; i++)
        status = i ? tn_config_add_plugins(config, folders[i], err) : tn_config_set_plugins(config, folders[i], err);
    while (n)
        free(folders[--n]);
    free(folders);
    return status;
}

static const char *plugin_state_name(tn_plugin_state state)
{
    static const char *const names[] = {[TN_PLUGIN_LOADED] = "loaded",
                                        [TN_PLUGIN_SKIPPED] = "skipped",
                                        [TN_PLUGIN_REFUSED] = "refused",
                                        [TN_PLUGIN_QUARANTINED] = "quarantined"};
    return (size_t)state < sizeof names / sizeof *names ? names[state] : "?";
}

static void note_found(const workspace *w)
{
    const options *o = w->options;
    tn_plugin_info info = {.size = sizeof info};
    note(o, "config: %s", tn_config_file(w->config) ? tn_config_file(w->config) : "none");
    for (size_t i = 0; i < tn_config_folder_count(w->config); i++)
        note(o, "plugins: %s", tn_config_folder(w->config, i));
    for (size_t i = 0; i < tn_plugin_count(); i++)
        if (tn_plugin_get(i, &info) == TN_OK && info.state == TN_PLUGIN_LOADED)
            note(o, "plugin: %s %s, %s", info.name, info.version, info.file);
}

void list_bad_plugins(FILE *to, const char *before, bool others)
{
    tn_plugin_info info = {.size = sizeof info};
    for (size_t i = 0; i < tn_plugin_count(); i++)
        if (tn_plugin_get(i, &info) == TN_OK && info.state != TN_PLUGIN_LOADED &&
            (others || info.state != TN_PLUGIN_SKIPPED))
            fprintf(to, "%s%s: %s: %s\n", before, info.file, plugin_state_name(info.state), info.reason);
}

/* Which of the configuration's folders it is in; the number of them: in none. */
static size_t folder_of(const workspace *w, const char *file)
{
    const char *slash = strrchr(file, '/');
    size_t length = slash ? (size_t)(slash - file) : 0, i = 0;
    for (const char *folder; (folder = tn_config_folder(w->config, i)); i++)
        if (strncmp(folder, file, length) == 0 && !folder[length])
            break;
    return i;
}

size_t count_bad_plugins(const workspace *w)
{
    size_t bad = 0, others = tn_config_folder_count(w->config);
    tn_plugin_info info = {.size = sizeof info};
    for (size_t i = 0; i < tn_plugin_count(); i++)
        if (tn_plugin_get(i, &info) == TN_OK && info.state != TN_PLUGIN_LOADED && info.state != TN_PLUGIN_SKIPPED) {
            size_t at = folder_of(w, info.file);
            bad += at < w->options->plugin_count || at == others;
        }
    return bad;
}

static bool is_none(const char *spec)
{
    return strcmp(spec, "none") == 0;
}

/* Is there any use for a plugin? A comparison may want kernels on its other side, and a device may be a plugin's. */
static bool needs_plugins(const workspace *w)
{
    const char *device = tn_config_device(w->config), *cpu = "cpu";
    bool own = strcmp(device, "auto") == 0 || (strncmp(device, cpu, 3) == 0 && (!device[3] || device[3] == ':'));
    return w->options->command->of_plugins || option_given(w->options, OPT_PARALLEL) ||
           !is_none(tn_config_kernels(w->config)) || !own || !is_none(option_text(w->options, OPT_AGAINST, "none"));
}

/* An error about what the file says names the file and its key, too. */
static tn_status blame_file(const workspace *w, const char *key, tn_error *err)
{
    tn_error why = *err;
    bool named = strcmp(why.where, key) == 0;
    tn_error_clear(err);
    return tn_fail(err, why.code, tn_config_file(w->config), "key '%s': %s%s%s", key, named ? "" : why.where,
                   named ? "" : ": ", why.message);
}

/* Beside the command line. */
static bool names_folder(const workspace *w, const char *where)
{
    for (size_t i = w->options->plugin_count; i < tn_config_folder_count(w->config); i++)
        if (strcmp(tn_config_folder(w->config, i), where) == 0)
            return true;
    return false;
}

tn_status device_error(const workspace *w, tn_error *err)
{
    if (option_given(w->options, OPT_DEVICE) || !tn_config_file(w->config) || strcmp(err->where, "device") != 0)
        return err->code;
    return blame_file(w, "device", err);
}

tn_status workspace_config(workspace *w, const options *o, tn_error *err)
{
    w->options = o;
    progress_start(&w->progress, o);
    w->config = tn_config_load(o->text[OPT_CONFIG], err);
    if (!w->config)
        return err->code;
    tn_status status = TN_OK;
    bool of_file = tn_config_says_plugins(w->config) && !is_only(o);
    if (option_given(o, OPT_DEVICE))
        status = tn_config_set_device(w->config, o->text[OPT_DEVICE], err);
    if (status == TN_OK && option_given(o, OPT_KERNELS))
        status = tn_config_set_kernels(w->config, o->text[OPT_KERNELS], err);
    if (status == TN_OK && option_given(o, OPT_MAX_PACKED))
        status = tn_config_set_max_packed_mb(w->config, option_integer(o, OPT_MAX_PACKED, -1), err);
    if (status == TN_OK && option_given(o, OPT_NO_MEASURE))
        status = tn_config_set_measure(w->config, false, err);
    if (status == TN_OK &&
        (option_given(o, OPT_SAME_BITS) || option_given(o, OPT_BATCH) || option_given(o, OPT_SPECULATE)))
        status = tn_config_set_same_bits(w->config, true, err);
    if (status == TN_OK && option_given(o, OPT_EXACT))
        status = tn_config_set_exact(w->config, true, err);
    if (status == TN_OK && option_given(o, OPT_LOCK))
        status = tn_config_set_lock(w->config, o->text[OPT_LOCK], err);
    if (status == TN_OK)
        status = set_folders(w->config, o, err);
    if (status == TN_OK)
        status = needs_plugins(w) ? tn_scan(w->config, err) : tn_check_folders(w->config, err);
    /* Who wants no kernels is not stopped by the state of a plugin folder. */
    if (status == TN_E_KERNEL && option_given(o, OPT_KERNELS) && is_none(tn_config_kernels(w->config))) {
        note(o, WARNING "%s: %s", err->where, err->message);
        tn_error_clear(err);
        status = TN_OK;
    }
    if (status == TN_E_KERNEL && of_file && names_folder(w, err->where))
        return blame_file(w, "plugins", err);
    if (status == TN_OK && option_given(o, OPT_VERBOSE))
        note_found(w);
    return status;
}

/* ---- the model -------------------------------------------------------------------------------- */

static int on_load(void *ctx, const char *what, int64_t done, int64_t total)
{
    progress_update(ctx, what, done, total);
    return 0;
}

/* "checking kernels, only the first time" with its figures behind "kernels". */
static int on_apply(void *ctx, const char *what, int64_t done, int64_t total)
{
    char label[96];
    int head = (int)strcspn(what, ",");
    if (done == total) {
        progress_clear(ctx);
        return 0;
    }
    snprintf(label, sizeof label, "%.*s %lld/%lld%s", head, what, (long long)done, (long long)total, what + head);
    progress_update(ctx, label, done, total);
    return 0;
}

/* Whoever computes elsewhere than on the CPU is told where, whose code that is, and who asked for it. */
static tn_status announce_device(const workspace *w, tn_error *err)
{
    const options *o = w->options;
    tn_device_info info = {.size = sizeof info};
    tn_status status = tn_device_get(tn_config_device(w->config), &info, err);
    if (status || !info.file)
        return status;
    const char *slash = strrchr(info.file, '/');
    char unit[16] = "";
    if (info.ordinal > 0)
        snprintf(unit, sizeof unit, ":%d", (int)info.ordinal);
    note(o, "device: %s%s (%s %s), asked for by %s", info.name, unit, slash ? slash + 1 : info.file, info.version,
         option_given(o, OPT_DEVICE) ? "--device" : tn_config_file(w->config));
    return TN_OK;
}

/* mpirun binds each of few ranks to one processor, however many there are. */
static void check_binding(const options *o, const tn_model_info *info)
{
    cpu_set_t own;
    const char *here = getenv("OMPI_COMM_WORLD_LOCAL_SIZE");
    long processors = sysconf(_SC_NPROCESSORS_ONLN), ranks = here ? strtol(here, NULL, 10) : 0;
    if (info->ranks < 2 || ranks < 1 || processors < 2 * ranks || sched_getaffinity(0, sizeof own, &own) != 0 ||
        CPU_COUNT(&own) > 1)
        return;
    note(o,
         WARNING
         "--parallel: each rank is bound to one of %ld processors; mpirun --bind-to none, or --map-by ppr:1:numa "
         "--bind-to numa, gives it more",
         processors);
}

tn_status workspace_model(workspace *w, const options *o, const char *folder, tn_error *err)
{
    tn_status status = workspace_config(w, o, err);
    if (status == TN_OK)
        status = announce_device(w, err);
    if (status)
        return device_error(w, err);
    /* Broken ones with --quiet, too: without their kernels sums round otherwise. */
    bool locked = option_given(o, OPT_LOCK); /* which says first what it keeps out, as an error               */
    if (!ranks_silent && !locked)
        list_bad_plugins(stderr, WARNING, !option_given(o, OPT_QUIET));
    tn_model_options options = {.size = sizeof options,
                                .dtype = w->dtype ? w->dtype : o->text[OPT_DTYPE],
                                .device = tn_config_device(w->config),
                                .threads = (int32_t)option_integer(o, OPT_THREADS, 0),
                                .progress = on_load,
                                .progress_ctx = &w->progress,
                                .training = w->training || option_given(o, OPT_TRAINING),
                                .lora = w->lora,
                                .dequantise = option_given(o, OPT_DEQUANTISE),
                                .adapter = w->adapter ? w->adapter : o->text[OPT_ADAPTER],
                                .applying = w->progress.enabled ? on_apply : NULL,
                                .parallel = w->looks ? NULL : o->text[OPT_PARALLEL],
                                .patience = (double)option_integer(o, OPT_PATIENCE, 0),
                                .lock = o->text[OPT_LOCK]};
    progress_start(&w->progress, o);
    w->model = tn_model_open(folder, &options, err);
    progress_clear(&w->progress);
    if (!w->model)
        return device_error(w, err);
    if (!ranks_silent && locked)
        list_bad_plugins(stderr, WARNING, !option_given(o, OPT_QUIET));
    check_threads(o, tn_thread_count());
    w->info.size = sizeof w->info;
    status = tn_model_get_info(w->model, &w->info);
    if (status)
        return tn_fail(err, status, folder, "the model tells nothing of itself; report this");
    check_binding(o, &w->info);
    char weights[32], seconds[32];
    if (option_given(o, OPT_VERBOSE))
        note(o, "model: %s, %lld layers, %.1f million parameters, weights %s, computes in %s, loaded in %s",
             w->info.class_name, (long long)w->info.layers, (double)w->info.parameters / 1e6,
             bytes_text((double)w->info.weight_bytes, weights), tn_dtype_name(w->info.dtype),
             seconds_text(w->info.load_seconds, seconds));
    return TN_OK;
}

void report_notes(const options *o, const tn_report *report)
{
    for (size_t i = 0; report && i < report->note_count; i++)
        note(o, WARNING "%s", report->notes[i]);
}

/* A kernel that was refused is worth the whole summary, whoever asked. */
static bool was_refused(const tn_report *report)
{
    for (size_t i = 0; i < report->site_count; i++)
        for (size_t j = 0; j < report->sites[i]->verdict_count; j++)
            if (report->sites[i]->verdicts[j]->refused)
                return true;
    return false;
}

/* How many kernels have how many of the sites that a summary counts. */
static void note_kernels(const options *o, const tn_report *report)
{
    size_t kernels = 0, all = 0, taken = 0;
    for (size_t i = 0; i < report->site_count; i++) {
        const tn_site_report *s = report->sites[i];
        bool counts = s->site->op < TN_OP_FIRST_STEP && !s->covered_by;
        all += counts;
        taken += counts && s->kernel;
    }
    for (size_t i = 0; i < report->kernel_count; i++)
        kernels += report->kernels[i]->sites > 0;
    if (option_given(o, OPT_VERBOSE) || was_refused(report))
        note(o, "kernels: %s", report->summary);
    else if (taken == 0)
        note(o, "kernels: none at %zu sites; --verbose says more", all);
    else if (taken == all)
        note(o, "kernels: %zu kernel%s at all sites; --verbose lists them", kernels, kernels == 1 ? "" : "s");
    else
        note(o, "kernels: %zu kernel%s at %zu of %zu sites; --verbose lists them", kernels, kernels == 1 ? "" : "s",
             taken, all);
}

tn_status workspace_apply(workspace *w, tn_error *err)
{
    tn_status status = tn_apply_kernels(w->model, w->config, NULL, &w->report, err);
    workspace_notices(w);
    if (status == TN_OK && option_given(w->options, OPT_SHADOW))
        status = tn_model_shadow(w->model, option_real(w->options, OPT_SHADOW, 0), "tenon-shadow", err);
    if (status == TN_OK)
        status = tn_model_get_info(w->model, &w->info); /* what kernels packed */
    if (status)
        return status;
    report_notes(w->options, w->report);
    const char *spec = tn_config_kernels(w->config);
    if (strncmp(spec, "auto", 4) == 0 || (option_given(w->options, OPT_VERBOSE) && strcmp(spec, "none") != 0))
        note_kernels(w->options, w->report);
    return TN_OK;
}

void check_threads(const options *o, int32_t made)
{
    cpu_set_t allowed;
    int64_t asked = option_integer(o, OPT_THREADS, 0);
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0 || asked <= CPU_COUNT(&allowed))
        return;
    char some[64] = "they";
    if (made > 0 && made < asked)
        snprintf(some, sizeof some, "%d are made, and they", made);
    note(o,
         WARNING "--threads: %lld are more than the %d processor%s that this program may use; %s wait for each other",
         (long long)asked, CPU_COUNT(&allowed), CPU_COUNT(&allowed) == 1 ? "" : "s", some);
}

int64_t workspace_positions(const workspace *w)
{
    return w->info.unbounded ? 0 : w->info.max_positions;
}

void workspace_check_context(const workspace *w, int64_t context)
{
    int64_t most = workspace_positions(w);
    if (most > 0 && context > most)
        note(w->options, WARNING "--context: %lld positions are more than the %lld that the model is made for",
             (long long)context, (long long)most);
}

void workspace_notices(workspace *w)
{
    for (; w->notices < tn_notice_count(); w->notices++) {
        progress_clear(&w->progress);
        note(w->options, WARNING "%s", tn_notice_get(w->notices));
    }
}

void workspace_close(workspace *w)
{
    progress_clear(&w->progress);
    if (w->options)
        workspace_notices(w);
    tn_report_free(w->report);
    tn_model_close(w->model);
    tn_config_free(w->config);
    *w = (workspace){0};
}

json_t *json_kernels(const workspace *w)
{
    json_t *notes = json_array();
    for (size_t i = 0; w->report && i < w->report->note_count; i++)
        json_array_append_new(notes, json_string(w->report->notes[i]));
    return json_pack("{s:s, s:s, s:o}", "spec", tn_config_kernels(w->config), "summary",
                     w->report ? w->report->summary : "", "notes", notes);
}
