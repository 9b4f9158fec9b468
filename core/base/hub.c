/* The cache of the Hub: HUB/models--ORG--NAME holds refs/REVISION, files with the hash of a commit, and snapshots/HASH,
 * folders with links to the files of that commit. A snapshot gets its links one by one as files arrive, so that one
 * whose download was stopped lacks some. */
#include "base/hub.h"

#include "base/file.h"
#include "base/gguf.h"
#include "base/structs.h"
#include "base/text.h"

#include <tenon/model.h>

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define LETTERS "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-"
#define HEX "0123456789abcdef"

enum { NAME_LENGTH = 96, REVISION_LENGTH = 128, COMMIT = 64 }; /* the first is the Hub's own limit, slash and all */

typedef struct hub_name {
    char model[NAME_LENGTH + 1];        /* ORG/NAME, or NAME                                              */
    char revision[REVISION_LENGTH + 1]; /* "" where none is given                                         */
} hub_name;

/* The Hub's rules, which also keep a name from leading out of the cache. */
static bool is_part(const char *text, size_t length)
{
    return length > 0 && strspn(text, LETTERS) >= length && !strchr(".-", text[0]) && !strchr(".-", text[length - 1]);
}

/* A branch may have slashes: refs/pr/1. */
static bool is_revision(const char *text)
{
    return text[strspn(text, LETTERS "/")] == '\0' && text[0] && !strchr("./", text[0]) && !strstr(text, "..");
}

static bool read_name(const char *path, hub_name *n)
{
    size_t length = strcspn(path, "@"), first;
    const char *revision = path[length] ? path + length + 1 : NULL;
    if (length > NAME_LENGTH || (revision && (!is_revision(revision) || strlen(revision) > REVISION_LENGTH)))
        return false;
    text_cut(n->model, sizeof n->model, "%.*s", (int)length, path);
    text_cut(n->revision, sizeof n->revision, "%s", revision ? revision : "");
    first = strcspn(n->model, "/");
    return is_part(n->model, first) && !strstr(n->model, "..") && !strstr(n->model, "--") &&
           (!n->model[first] || is_part(n->model + first + 1, length - first - 1));
}

/* Where it is, by the rules of the Hub's own tools; "" where no variable tells. */
static void find_cache(char cache[PATH_MAX])
{
    static const char *const below[] = {"", "", "/hub", "/huggingface/hub", "/.cache/huggingface/hub"};
    const char *const folders[] = {secure_getenv("HF_HUB_CACHE"), secure_getenv("HUGGINGFACE_HUB_CACHE"),
                                   secure_getenv("HF_HOME"), secure_getenv("XDG_CACHE_HOME"), secure_getenv("HOME")};
    cache[0] = '\0';
    for (size_t i = 0; i < sizeof folders / sizeof *folders && !cache[0]; i++)
        if (folders[i] && folders[i][0])
            text_cut(cache, PATH_MAX, "%s%s", folders[i], below[i]);
}

static void model_folder(const hub_name *n, const char *cache, char folder[PATH_MAX])
{
    size_t owner = strcspn(n->model, "/");
    const char *name = n->model[owner] ? n->model + owner + 1 : "";
    text_cut(folder, PATH_MAX, "%s/models--%.*s%s%s", cache, (int)owner, n->model, name[0] ? "--" : "", name);
}

static tn_status fail(const hub_name *n, const char *where, const char *what, tn_error *err)
{
    return tn_fail(err, TN_E_INPUT, where, "%s; fetch it: hf download %s%s%s", what, n->model,
                   n->revision[0] ? " --revision " : "", n->revision);
}

/* The commit that a branch or tag names; "" where there is no such file. */
static tn_status read_reference(const hub_name *n, const char *path, char commit[COMMIT + 1], tn_error *err)
{
    struct stat st;
    char *text = NULL;
    size_t size = 0;
    commit[0] = '\0';
    if (stat(path, &st) != 0 || !S_ISREG(st.st_mode))
        return TN_OK;
    tn_status status = file_read(path, COMMIT + 2, &text, &size, err);
    if (status != TN_OK)
        return status;
    size_t length = strspn(text, HEX);
    if (length == 0 || length > COMMIT || text[length + strspn(text + length, "\r\n")])
        status = fail(n, path, "holds no hash of a commit", err);
    else
        text_cut(commit, COMMIT + 1, "%.*s", (int)length, text);
    free(text);
    return status;
}

/* The one snapshot whose hash begins with the revision; "" where there is none. */
static tn_status find_commit(const hub_name *n, const char *folder, char commit[COMMIT + 1], tn_error *err)
{
    size_t length = strlen(n->revision), count = 0;
    DIR *snapshots = length && strspn(n->revision, HEX) == length ? opendir(folder) : NULL;
    commit[0] = '\0';
    for (const struct dirent *e; snapshots && (e = readdir(snapshots));)
        if (strncmp(e->d_name, n->revision, length) == 0 && strlen(e->d_name) <= COMMIT && ++count)
            text_cut(commit, COMMIT + 1, "%s", e->d_name);
    if (snapshots)
        closedir(snapshots);
    return count < 2 ? TN_OK
                     : tn_fail(err, TN_E_INPUT, folder, "%zu commits begin with %s; write more of the hash", count,
                               n->revision);
}

/* A branch or tag that the cache has, main before others; "" where there is none. */
static void another_reference(const char *model, char name[REVISION_LENGTH + 1])
{
    char path[PATH_MAX];
    text_cut(path, sizeof path, "%s/refs", model);
    DIR *refs = opendir(path);
    name[0] = '\0';
    for (const struct dirent *e; refs && (e = readdir(refs));)
        if (e->d_name[0] != '.' && strlen(e->d_name) <= REVISION_LENGTH && strcmp(name, "main") != 0 &&
            (!name[0] || strcmp(e->d_name, "main") == 0 || strcmp(e->d_name, name) < 0))
            text_cut(name, REVISION_LENGTH + 1, "%s", e->d_name);
    if (refs)
        closedir(refs);
}

/* Of a model that the cache has. */
static tn_status find_snapshot(const hub_name *n, const char *model, char found[PATH_MAX], tn_error *err)
{
    char path[PATH_MAX], what[2 * REVISION_LENGTH + 64], commit[COMMIT + 1], other[REVISION_LENGTH + 1];
    struct stat st;
    const char *revision = n->revision[0] ? n->revision : "main";
    text_cut(path, sizeof path, "%s/refs/%s", model, revision);
    tn_status status = read_reference(n, path, commit, err);
    text_cut(path, sizeof path, "%s/snapshots", model);
    if (status == TN_OK && !commit[0])
        status = find_commit(n, path, commit, err);
    text_cut(found, PATH_MAX, "%s/%s", path, commit);
    if (status != TN_OK || (commit[0] && stat(found, &st) == 0 && S_ISDIR(st.st_mode)))
        return status;
    another_reference(model, other);
    text_cut(what, sizeof what, "has no revision %s of this model%s%s", revision,
             other[0] && strcmp(other, revision) != 0 ? ", but " : "",
             other[0] && strcmp(other, revision) != 0 ? other : "");
    return fail(n, model, what, err);
}

/* In the cache. given: for messages. */
static tn_status find_model(const hub_name *n, const char *given, const char *otherwise, char found[PATH_MAX],
                            tn_error *err)
{
    char cache[PATH_MAX], model[PATH_MAX], what[PATH_MAX];
    struct stat st;
    find_cache(cache);
    model_folder(n, cache, model);
    text_cut(what, sizeof what, "%sno model of this name in the cache of the Hugging Face Hub (%.200s)", otherwise,
             cache);
    return stat(model, &st) != 0 ? fail(n, given, what, err) : find_snapshot(n, model, found, err);
}

static char *own_copy(const char *path, tn_error *err)
{
    char *own = strdup(path);
    if (!own)
        tn_fail(err, TN_E_MEMORY, path, "out of memory");
    return own;
}

char *tn_hub_folder(const char *id, const char *revision, tn_error *err)
{
    char found[PATH_MAX];
    hub_name n;
    if (!id) {
        structs_missing("id", err);
        return NULL;
    }
    if (!read_name(id, &n)) {
        tn_fail(err, TN_E_INPUT, id, "is no name of a model on the Hub; write ORG/NAME, or ORG/NAME@REVISION");
        return NULL;
    }
    if (revision && (n.revision[0] || !is_revision(revision) || strlen(revision) > REVISION_LENGTH)) {
        tn_fail(err, TN_E_INPUT, id,
                n.revision[0] ? "names a revision, and another is given" : "%s is no name of a revision", revision);
        return NULL;
    }
    if (revision)
        text_cut(n.revision, sizeof n.revision, "%s", revision);
    return find_model(&n, id, "", found, err) == TN_OK ? own_copy(found, err) : NULL;
}

char *hub_find(const char *path, tn_error *err)
{
    char found[PATH_MAX];
    struct stat st;
    hub_name n;
    found[0] = '\0';
    bool gone = !gguf_is_named(path) && stat(path, &st) != 0 && (errno == ENOENT || errno == ENOTDIR);
    if (gone && read_name(path, &n) && find_model(&n, path, "no such folder, and ", found, err) != TN_OK)
        return NULL;
    return own_copy(found[0] ? found : path, err);
}

void hub_explain(const char *path, const char *found, tn_error *err)
{
    struct stat st;
    hub_name n;
    size_t length = strlen(found);
    if (err->code != TN_E_INPUT || strcmp(path, found) == 0 || strncmp(err->where, found, length) != 0 ||
        stat(err->where, &st) == 0 || !read_name(path, &n))
        return;
    const tn_error why = *err;
    tn_error_clear(err);
    fail(&n, why.where, "is not there: the cache of the Hub has a part of this model only", err);
}
