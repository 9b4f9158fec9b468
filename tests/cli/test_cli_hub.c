/* Models by the name that they have on the Hub, in a cache as its tools leave it. */
#include "base/hub.h"
#include "process.h"
#include "suite.h"
#include "tempdir.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <tenon/tenon.h>
#include <unistd.h>

#define OLD "1f00d0a7e6f1c2b3a4d5e6f708192a3b4c5d6e7f"
#define NEW "1f0aa0a7e6f1c2b3a4d5e6f708192a3b4c5d6e7f"
#define GET "; fetch it: hf download "

static char *home, *hub; /* hub: HOME/.cache/huggingface/hub */

static void make_folders(const char *path)
{
    char part[4200];
    for (const char *slash = path; (slash = strchr(slash + 1, '/'));) {
        snprintf(part, sizeof part, "%.*s", (int)(slash - path), path);
        mkdir(part, 0755);
    }
    mkdir(path, 0755);
}

/* HUB/models--MODEL/name, in folders that are made. Owned. */
static char *place(const char *model, const char *name)
{
    char path[4200];
    snprintf(path, sizeof path, "%s/models--%s/%s", hub, model, name);
    char *slash = strrchr(path, '/');
    *slash = '\0';
    make_folders(path);
    *slash = '/';
    return strdup(path);
}

static void refer(const char *model, const char *revision, const char *commit)
{
    char name[256];
    snprintf(name, sizeof name, "refs/%s", revision);
    char *path = place(model, name);
    tempdir_write(path, commit, strlen(commit));
    free(path);
}

/* A snapshot of links to blobs, which hold the files of from. */
static void download(const char *model, const char *commit, const char *from)
{
    static const char *const names[] = {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json",
                                        "generation_config.json"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char name[256], target[256], *source = tempdir_at(from, names[i]);
        snprintf(name, sizeof name, "blobs/%zu", i);
        char *blob = place(model, name);
        snprintf(name, sizeof name, "snapshots/%s/%s", commit, names[i]);
        char *link = place(model, name);
        snprintf(target, sizeof target, "../../blobs/%zu", i);
        if (tempdir_exists(source)) {
            size_t size;
            void *data = tempdir_read(source, &size);
            tempdir_write(blob, data, size);
            ck_assert_int_eq(symlink(target, link), 0);
            free(data);
        }
        free(blob);
        free(link);
    }
}

static void setup(void)
{
    char path[4200];
    home = tempdir_new();
    snprintf(path, sizeof path, "%s/.cache/huggingface/hub", home);
    hub = strdup(path);
    make_folders(hub);
    setenv("HOME", home, 1);
    unsetenv("XDG_CACHE_HOME");
    unsetenv("HF_HOME");
    unsetenv("HF_HUB_CACHE");
    unsetenv("HUGGINGFACE_HUB_CACHE");
}

static void teardown(void)
{
    free(hub);
}

static void expect_found(const char *name, const char *model, const char *commit)
{
    char want[4300];
    tn_error err = TN_ERROR_INIT;
    char *found = hub_find(name, &err);
    ck_assert_msg(found != NULL, "%s: %s", err.where, err.message);
    snprintf(want, sizeof want, "%s/models--%s/snapshots/%s", hub, model, commit);
    ck_assert_str_eq(found, want);
    free(found);
}

static void expect_none(const char *name, const char *word, const char *command)
{
    tn_error err = TN_ERROR_INIT;
    ck_assert_ptr_null(hub_find(name, &err));
    ck_assert_int_eq(err.code, TN_E_INPUT);
    ck_assert_msg(strstr(err.message, word) && strstr(err.message, command), "%s: %s", err.where, err.message);
    const char *end = strstr(err.message, command) + strlen(command);
    ck_assert_msg(!*end, "%s", end);
}

START_TEST(revisions)
{
    download("org--name", OLD, "models/demo");
    download("org--name", NEW, "models/demo");
    download("gpt2", OLD, "models/demo");
    refer("org--name", "main", NEW);
    refer("org--name", "v1.0", OLD "\n");
    refer("org--name", "refs/pr/1", OLD);
    refer("org--name", "beef", "1f00d");
    refer("org--name", "broken", "../../elsewhere");
    refer("org--name", "gone", "00" OLD);
    refer("gpt2", "main", OLD);
    expect_found("org/name", "org--name", NEW);
    expect_found("org/name@main", "org--name", NEW);
    expect_found("org/name@v1.0", "org--name", OLD);
    expect_found("org/name@refs/pr/1", "org--name", OLD);
    expect_found("org/name@" OLD, "org--name", OLD);
    expect_found("org/name@1f00", "org--name", OLD);
    expect_found("gpt2", "gpt2", OLD);
    expect_found("gpt2@1", "gpt2", OLD);
    expect_none("org/name@1f0", "2 commits begin with 1f0; write more of the hash", "hash");
    expect_none("org/name@2", "has no revision 2 of this model", GET "org/name --revision 2");
    expect_none("org/name@v2", "has no revision v2 of this model, but main", GET "org/name --revision v2");
    expect_none("org/name@gone", "has no revision gone of", GET "org/name --revision gone");
    expect_none("org/name@beef", "has no revision beef of", GET "org/name --revision beef");
    expect_none("org/name@broken", "holds no hash of a commit", GET "org/name --revision broken");
    expect_none("org/other", "no such folder, and no model of this name in the cache", GET "org/other");
    char *only = place("org--tagged", "snapshots/" OLD "/x");
    expect_none("org/tagged", "has no revision main of this model", GET "org/tagged");
    free(only);
}
END_TEST

/* For programs: no folder of that name counts. */
START_TEST(folders_for_programs)
{
    static const struct {
        const char *id, *revision, *model, *commit;
    } there[] = {{"org/name", NULL, "org--name", NEW},
                 {"org/name", "v1", "org--name", OLD},
                 {"org/name@v1", NULL, "org--name", OLD},
                 {"models/demo", NULL, "models--demo", NEW}};
    static const struct {
        const char *id, *revision, *words;
    } none[] = {
        {"org/name", "v2", "has no revision v2 of this model, but main; fetch it: hf download org/name --revision v2"},
        {"org/dated", NULL, "has no revision main of this model, but v1; fetch it: hf download org/dated"},
        {"org/other", NULL, "no model of this name in the cache of the Hugging Face Hub ("},
        {"../org/name", NULL, "is no name of a model"},
        {"", NULL, "is no name of a model"},
        {"org/name@v1", "v1", "names a revision, and another is given"},
        {"org/name", "../main", "../main is no name of a revision"},
        {"org/name", "", "is no name of a revision"}};
    download("org--name", OLD, "models/demo");
    download("org--name", NEW, "models/demo");
    download("models--demo", NEW, "models/demo");
    download("org--dated", NEW, "models/demo");
    refer("org--name", "main", NEW);
    refer("org--name", "v1", OLD);
    refer("models--demo", "main", NEW);
    refer("org--dated", "v1", NEW);
    for (size_t i = 0; i < sizeof there / sizeof *there; i++) {
        char want[4300];
        tn_error err = TN_ERROR_INIT;
        char *found = tn_hub_folder(there[i].id, there[i].revision, &err);
        ck_assert_msg(found != NULL, "%s: %s", err.where, err.message);
        snprintf(want, sizeof want, "%s/models--%s/snapshots/%s", hub, there[i].model, there[i].commit);
        ck_assert_str_eq(found, want);
        free(found);
    }
    for (size_t i = 0; i < sizeof none / sizeof *none; i++) {
        tn_error err = TN_ERROR_INIT;
        ck_assert_ptr_null(tn_hub_folder(none[i].id, none[i].revision, &err));
        ck_assert_int_eq(err.code, TN_E_INPUT);
        ck_assert_msg(strstr(err.message, none[i].words), "%s: %s", err.where, err.message);
    }
    ck_assert_ptr_null(tn_hub_folder(NULL, NULL, NULL));
}
END_TEST

/* What is no name of the Hub's stays a path, and leads nowhere. */
static const char *const paths[] = {"../org",    "org/../name",      "/org/name", "./name",         "org/name/",
                                    "a/b/c",     "org/..",           "org//name", "a--b/c",         "org/na me",
                                    "org/name@", "org/name@../main", "org/-name", "org/name@/main", "@main",
                                    ".hidden",   "org/name..",       ""};

START_TEST(other_names)
{
    tn_error err = TN_ERROR_INIT;
    refer("org--name", "main", NEW);
    char *found = hub_find(paths[_i], &err);
    ck_assert_str_eq(found, paths[_i]);
    free(found);
    ck_assert_ptr_null(tn_model_open(paths[_i], NULL, &err));
    ck_assert_int_eq(err.code, TN_E_INPUT);
}
END_TEST

START_TEST(a_folder_of_that_name_wins)
{
    download("models--demo", NEW, "models/demo");
    refer("models--demo", "main", NEW);
    tn_error err = TN_ERROR_INIT;
    char *found = hub_find("models/demo", &err);
    ck_assert_str_eq(found, "models/demo");
    free(found);
}
END_TEST

/* The first of these that is set. */
START_TEST(where_the_cache_is)
{
    static const struct {
        const char *variable, *value, *below;
    } places[] = {{"XDG_CACHE_HOME", "xdg", "/huggingface/hub"},
                  {"HF_HOME", "hf", "/hub"},
                  {"HUGGINGFACE_HUB_CACHE", "older", ""},
                  {"HF_HUB_CACHE", "cache", ""}};
    for (int i = 0; i < 4; i++) {
        char path[4200], *value = tempdir_at(home, places[i].value);
        setenv(places[i].variable, "", 1);
        expect_none("org/name", hub, GET "org/name");
        setenv(places[i].variable, value, 1);
        snprintf(path, sizeof path, "%s%s", value, places[i].below);
        expect_none("org/name", path, GET "org/name");
        free(hub);
        hub = strdup(path);
        download("org--name", NEW, "models/demo");
        refer("org--name", "main", NEW);
        expect_found("org/name", "org--name", NEW);
        char *gone = place("org--name", "refs/main");
        ck_assert_int_eq(unlink(gone), 0);
        snprintf(path, sizeof path, "%s/models--org--name", hub);
        free(gone);
        char *aside = tempdir_at(home, places[i].variable);
        ck_assert_int_eq(rename(path, aside), 0);
    }
}
END_TEST

/* Every command that takes a model. */
START_TEST(commands_take_names)
{
    download("org--demo", NEW, "models/demo");
    refer("org--demo", "main", NEW);
    process_result by_folder = TENON(NULL, "run", "models/demo", "And it came", "-n4", "--temperature=0");
    process_result r = TENON(NULL, "run", "org/demo", "And it came", "-n4", "--temperature=0");
    ck_assert_msg(r.status == 0, "%s", r.err);
    ck_assert_str_eq(r.out, by_folder.out);
    process_expect_output(TENON(NULL, "org/demo", "And it came", "-n1", "--kernels=none", "--temperature=0"), NULL);
    process_expect_output(TENON(NULL, "tokenize", "org/demo@1f0", "And it came"), NULL);
    process_expect_output(TENON(NULL, "inspect", "org/demo@main", "--kernels=none"), NULL);
    static const char jinja[] = "{% for m in messages %}{{ m.content }}{% endfor %}";
    char *template_file = place("org--demo", "snapshots/" NEW "/chat_template.jinja");
    tempdir_write(template_file, jinja, sizeof jinja - 1);
    free(template_file);
    process_expect_output(TENON("Hello\n", "chat", "org/demo", "-n2", "--kernels=none"), NULL);
    process_expect_output(TENON("And it came to pass\n", "perplexity", "org/demo", "-", "--kernels=none"), NULL);
    r = TENON(NULL, "run", "org/demo", "And", "-n1", "--kernels=none", "--json");
    ck_assert_msg(r.status == 0 && strstr(r.out, "/snapshots/" NEW "\""), "%s%s", r.out, r.err);
    static const char *const commands[] = {"run", "tokenize", "perplexity", "inspect", "verify", "bench", "chat"};
    for (int i = 0; i < 7; i++)
        process_expect_error(TENON(NULL, commands[i], "org/other@v1",
                                   i < 2   ? "x"
                                   : i < 3 ? "README.md"
                                           : NULL),
                             4,
                             "org/other@v1: no such folder, and no model of this name in the cache of the Hugging Face "
                             "Hub (",
                             GET "org/other --revision v1\n", NULL);
}
END_TEST

/* A download that was stopped, or blobs that were removed since. */
START_TEST(a_part_of_a_snapshot)
{
    static const char *const files[] = {"config.json", "model.safetensors", "tokenizer.json", "generation_config.json"};
    download("org--demo", NEW, "models/demo");
    refer("org--demo", "v1", NEW);
    for (int i = 0; i < 8; i++) {
        char name[256], want[512];
        snprintf(name, sizeof name, "snapshots/" NEW "/%s", files[i / 2]);
        char *link = place("org--demo", name), *away = place("org--demo", "away");
        if (!tempdir_exists(link)) /* the demo has no such file */
            ck_assert_int_eq(symlink("../../blobs/none", link), 0);
        ck_assert_int_eq(rename(link, away), 0);
        if (i % 2 || i == 6)
            ck_assert_int_eq(symlink("../../blobs/none", link), 0);
        tn_error err = TN_ERROR_INIT;
        ck_assert(i / 2 == 2 ? !tn_tokenizer_open("org/demo@v1", &err) : !tn_model_open("org/demo@v1", NULL, &err));
        snprintf(want, sizeof want,
                 "is not there: the cache of the Hub has a part of this model only" GET "org/demo --revision v1");
        ck_assert_str_eq(err.message, want);
        ck_assert_str_eq(err.where, link);
        ck_assert_int_eq(err.code, TN_E_INPUT);
        unlink(link);
        ck_assert_int_eq(rename(away, link), 0);
        free(link);
        free(away);
    }
}
END_TEST

/* An error of what is there stays as it is. */
START_TEST(a_broken_file_of_a_snapshot)
{
    download("org--demo", NEW, "models/demo");
    refer("org--demo", "main", NEW);
    char *config = place("org--demo", "blobs/0");
    tempdir_write(config, "{", 1);
    tn_error err = TN_ERROR_INIT;
    ck_assert_ptr_null(tn_model_open("org/demo", NULL, &err));
    ck_assert_msg(strstr(err.message, "JSON") && strstr(err.where, "/config.json"), "%s: %s", err.where, err.message);
    free(config);
}
END_TEST

int main(void)
{
    TCase *tc = suite_open("cli: the Hub's cache", 0);
    tcase_add_checked_fixture(tc, setup, teardown);
    suite_add(tc, revisions, folders_for_programs);
    tcase_add_loop_test(tc, other_names, 0, sizeof paths / sizeof *paths);
    suite_add(tc, a_folder_of_that_name_wins, where_the_cache_is, commands_take_names, a_part_of_a_snapshot,
              a_broken_file_of_a_snapshot);
    return process_main();
}
