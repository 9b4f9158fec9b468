/* tenon kernels: which kernels there are on this device, and what became of every plugin. */
#include "cli.h"

#include <stdlib.h>
#include <string.h>

/* Two lists that are printed as one: kernels of this device, and those of others. */
typedef struct kernel_list {
    tn_kernel_info **here, **elsewhere;
    size_t here_count, elsewhere_count;
} kernel_list;

static size_t list_count(const kernel_list *l)
{
    return l->here_count + l->elsewhere_count;
}

static const tn_kernel_info *list_at(const kernel_list *l, size_t index)
{
    return index < l->here_count ? l->here[index] : l->elsewhere[index - l->here_count];
}

static tn_status print_json(const kernel_list *l, tn_error *err)
{
    json_t *list = json_array();
    for (size_t i = 0; i < list_count(l); i++) {
        const tn_kernel_info *k = list_at(l, i);
        json_array_append_new(list, json_pack("{s:s, s:s, s:s, s:s, s:b, s:s, s:s}", "id", k->id, "device", k->device,
                                              "version", k->version, "file", k->file, "available", (int)k->available,
                                              "reason", k->reason, "summary", k->summary ? k->summary : ""));
    }
    if (json_array_size(list) != list_count(l)) {
        json_decref(list);
        list = NULL;
    }
    return json_print(list, false, err);
}

/* What stands below the table. */
static void print_footnotes(bool named_npu, size_t more)
{
    if (named_npu)
        printf(
            "npu_* for the CPU: the ids are those of LLaMA-Factory's kernels, so that one list of names serves both\n");
    if (more)
        printf("%zu more for other devices: --all lists %s\n", more, more == 1 ? "it" : "them");
}

static tn_status print_table(const options *o, const kernel_list *l, tn_error *err)
{
    table t;
    size_t shown = option_given(o, OPT_ALL) ? list_count(l) : l->here_count, more = list_count(l) - shown;
    bool named_npu = false;
    if (!shown) {
        note(o, "no kernels for %s; give a folder that holds plugins with --plugins, or name one in kernels.json",
             option_text(o, OPT_DEVICE, "the CPU"));
        print_footnotes(false, more);
        return TN_OK;
    }
    table_start(&t, 5, 0);
    table_cell(&t, "ID");
    table_cell(&t, "DEVICE");
    table_cell(&t, "VERSION");
    table_cell(&t, "AVAILABLE");
    table_cell(&t, "FILE, OR WHY NOT");
    for (size_t i = 0; i < shown; i++) {
        const tn_kernel_info *k = list_at(l, i);
        named_npu |= strncmp(k->id, "npu_", 4) == 0 && strcmp(k->device, "cpu") == 0;
        table_cell(&t, "%s", k->id);
        table_cell(&t, "%s", k->device);
        table_cell(&t, "%s", k->version);
        table_cell(&t, "%s", k->available ? "yes" : "no");
        table_cell(&t, "%s", k->available ? k->file : k->reason);
    }
    tn_status status = table_print(&t, err);
    if (status == TN_OK)
        print_footnotes(named_npu, more);
    return status;
}

/* Devices that plugins bring and that are here: they compute for who asks for them. Who asks for another is told why it
 * is not. */
static void print_devices(const options *o)
{
    tn_device_info info = {.size = sizeof info}, here = {.size = sizeof here};
    for (size_t i = 0; i < tn_device_count(); i++)
        if (tn_device_at(i, &info) == TN_OK && tn_device_get(info.name, &here, NULL) == TN_OK)
            note(o, "device: %s%s%s, brought by %s %s; --device %s computes on it", info.name,
                 info.summary[0] ? ", " : "", info.summary, info.file, info.version, info.name);
}

static bool all_loaded(void)
{
    tn_plugin_info info = {.size = sizeof info};
    for (size_t i = 0; i < tn_plugin_count(); i++)
        if (tn_plugin_get(i, &info) == TN_OK && info.state != TN_PLUGIN_LOADED)
            return false;
    return true;
}

/* Behind the table, or beside the JSON, which holds kernels only. */
static void print_plugins(bool json)
{
    if (!json && !all_loaded())
        printf("\nnot used:\n");
    list_bad_plugins(json ? stderr : stdout, json ? WARNING : "  ", true);
}

static tn_status run_kernels(const options *o, tn_error *err)
{
    workspace w = {0};
    kernel_list list = {0};
    bool json = option_given(o, OPT_JSON);
    tn_status status = workspace_config(&w, o, err);
    if (status == TN_OK)
        status = tn_kernels_available(tn_config_device(w.config), &list.here, &list.here_count, err);
    if (status == TN_OK)
        status = tn_kernels_elsewhere(tn_config_device(w.config), &list.elsewhere, &list.elsewhere_count, err);
    if (status != TN_OK)
        status = device_error(&w, err);
    if (status == TN_OK) {
        status = json ? print_json(&list, err) : print_table(o, &list, err);
        print_devices(o);
        print_plugins(json);
        note_unfiltered(o);
        size_t bad = o->plugin_count ? count_bad_plugins(&w) : 0;
        if (status == TN_OK && bad)
            status = tn_fail(err, TN_E_KERNEL, o->plugins[0],
                             "%zu of %zu plugins cannot be used; see the reasons listed, and remove or rebuild them",
                             bad, tn_plugin_count());
    }
    free(list.here);
    free(list.elsewhere);
    workspace_close(&w);
    return status;
}

static const option_spec own_options[] = {
    {OPT_JSON, "json", NULL, 0, OPTION_FLAG, 0, 0, "a list of objects instead of a table, those of other devices too"},
    {OPT_ALL, "all", NULL, 0, OPTION_FLAG, 0, 0, "kernels of other devices, too"},
};

const command command_kernels = {
    .name = "kernels",
    .arguments = "[--plugins DIR] [--device D] [--all] [--json]",
    .summary = "Lists the kernels of this device. Plugins that could not be used follow, each with the reason.",
    .options = own_options,
    .option_count = sizeof own_options / sizeof *own_options,
    .notes =
        "The exit status is 3 when a folder given with --plugins or --only-plugins holds a plugin that was refused or\n"
        "that failed its trial. A file that is no plugin at all, or one for another machine, is listed and does not\n"
        "count.",
    .example = "  tenon kernels --plugins ./my-kernels",
    .of_plugins = true,
    .run = run_kernels,
};
