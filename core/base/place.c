/* Folders that hold a model in another form, or only a part of one: named, with the way to a checkpoint. */
#include "base/place.h"

#include "base/file.h"
#include "base/json_memory.h"
#include "base/text.h"

#include <dirent.h>
#include <fcntl.h>
#include <jansson.h>
#include <limits.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define ADAPTER "adapter_config.json"
#define ADAPTER_LIMIT ((size_t)16 << 20)

/* A link that leads nowhere counts: who reads the file says so. */
static bool holds(const char *folder, const char *name)
{
    char path[PATH_MAX];
    return text_cut(path, sizeof path, "%s/%s", folder, name) > 0 &&
           faccessat(AT_FDCWD, path, F_OK, AT_SYMLINK_NOFOLLOW) == 0;
}

static tn_status name_adapter(const char *folder, tn_error *err)
{
    char *path = file_join(folder, ADAPTER), *data = NULL;
    size_t size = 0;
    tn_status status =
        path ? file_read(path, ADAPTER_LIMIT, &data, &size, err) : tn_fail(err, TN_E_MEMORY, folder, "out of memory");
    free(path);
    if (status != TN_OK)
        return status;
    json_memory_watch();
    json_t *config = json_loadb(data, size, 0, NULL);
    const char *base = json_string_value(json_object_get(config, "base_model_name_or_path"));
    status =
        json_memory_failed()
            ? tn_fail(err, TN_E_MEMORY, folder, "out of memory")
            : tn_fail(err, TN_E_INPUT, folder,
                      "is an adapter (LoRA or another of PEFT's) for %s, not a model; merge it into that model with "
                      "merge_and_unload() of PEFT, and give the folder of the result",
                      base ? base : "another model");
    json_decref(config);
    free(data);
    return status;
}

static bool ends_with(const char *name, const char *end)
{
    size_t length = strlen(name), n = strlen(end);
    return length > n && strcmp(name + length - n, end) == 0;
}

/* The first by name, whatever order the folder has. */
static void keep_first(char kept[NAME_MAX + 1], const char *name)
{
    if (!kept[0] || strcmp(name, kept) < 0)
        text_cut(kept, NAME_MAX + 1, "%s", name);
}

/* "" where there is none of a kind. */
static void find_others(const char *folder, char pickle[NAME_MAX + 1], char gguf[NAME_MAX + 1])
{
    DIR *entries = opendir(folder);
    pickle[0] = gguf[0] = '\0';
    for (const struct dirent *e; entries && (e = readdir(entries));) {
        if (ends_with(e->d_name, ".bin") || ends_with(e->d_name, ".pth") || ends_with(e->d_name, ".pt"))
            keep_first(pickle, e->d_name);
        else if (ends_with(e->d_name, ".gguf"))
            keep_first(gguf, e->d_name);
    }
    if (entries)
        closedir(entries);
}

tn_status place_check_weights(const char *folder, tn_error *err)
{
    char pickle[NAME_MAX + 1], gguf[NAME_MAX + 1];
    if (holds(folder, "model.safetensors") || holds(folder, "model.safetensors.index.json"))
        return TN_OK;
    if (holds(folder, ADAPTER))
        return name_adapter(folder, err);
    find_others(folder, pickle, gguf);
    if (pickle[0])
        return tn_fail(err, TN_E_INPUT, folder,
                       "holds its weights as pickles (%s), which are not read, since reading one may run code; convert "
                       "them to safetensors, or take a revision of the model that has model.safetensors",
                       pickle);
    if (gguf[0])
        return tn_fail(err, TN_E_INPUT, folder, "holds its weights as GGUF; give the file itself, such as %s/%s",
                       folder, gguf);
    return TN_OK;
}

tn_status place_check(const char *folder, const char *wanted, tn_error *err)
{
    static const char *const names[] = {"config.json", "tokenizer.json", "tokenizer.json.gz", "tokenizer.model"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (holds(folder, names[i]))
            return TN_OK;
    tn_status status = place_check_weights(folder, err);
    char *path = status == TN_OK ? file_join(folder, wanted) : NULL;
    if (path)
        status =
            tn_fail(err, TN_E_INPUT, path,
                    "is not there, nor is %s; give the folder of a checkpoint itself, in a cache of the Hub the one "
                    "below snapshots",
                    names[strcmp(wanted, names[0]) == 0]);
    free(path);
    return status != TN_OK ? status : tn_fail(err, TN_E_MEMORY, folder, "out of memory");
}
