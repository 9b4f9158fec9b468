/* tenon cache: what is shown, cleared and pruned. */
#include "printed.h"
#include "suite.h"
#include "tempdir.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define CHECKED "checked-0123456789abcdef"
#define TIMES "measured-0123456789abcdef"

static char *folder;

static void put(const char *name)
{
    char path[4200];
    snprintf(path, sizeof path, "%s/tenon", folder);
    mkdir(path, 0700);
    snprintf(path, sizeof path, "%s/tenon/%s", folder, name);
    tempdir_write(path, "text", 4);
}

static void setup(void)
{
    folder = tempdir_new();
    setenv("XDG_CACHE_HOME", folder, 1);
    put(CHECKED);
    put(TIMES);
    put("mine");
}

static json_int_t files(const json_t *root, const char *kind)
{
    size_t i;
    json_t *row;
    json_array_foreach (json_object_get(root, "kinds"), i, row) {
        if (!strcmp(json_string_value(json_object_get(row, "kind")), kind))
            return json_integer_value(json_object_get(row, "files"));
    }
    ck_abort_msg("no kind %s", kind);
}

START_TEST(it_is_shown)
{
    process_result r = TENON(NULL, "cache");
    ck_assert_msg(r.status == 0 && strstr(r.out, folder) && strstr(r.out, "\ntrials") && strstr(r.out, "today"), "%s",
                  r.out);
    r = TENON(NULL, "cache", "--json");
    json_t *root = printed_json(&r, 0);
    ck_assert_int_eq(files(root, "checks"), 1);
    ck_assert_int_eq(files(root, "times"), 1);
    ck_assert_int_eq(files(root, "trials"), 0);
    ck_assert_ptr_null(json_object_get(root, "removed"));
}
END_TEST

START_TEST(it_is_cleared)
{
    process_expect_output(TENON(NULL, "cache", "clear", "--kind", "times"), "removed 1 file, 4 bytes\n");
    process_result r = TENON(NULL, "cache", "clear", "--json");
    json_t *root = printed_json(&r, 0);
    ck_assert_int_eq(files(root, "checks"), 0);
    ck_assert_int_eq(json_integer_value(json_object_get(json_object_get(root, "removed"), "files")), 1);
    char path[4200];
    struct stat st;
    snprintf(path, sizeof path, "%s/tenon/mine", folder);
    ck_assert_int_eq(stat(path, &st), 0);
}
END_TEST

START_TEST(it_is_pruned)
{
    process_expect_output(TENON(NULL, "cache", "prune", "--max-age=1", "--max-mb=1"), "removed 0 files, 0 bytes\n");
    char path[4200];
    snprintf(path, sizeof path, "%s/tenon/" CHECKED, folder);
    FILE *large = fopen(path, "w");
    ck_assert(large && fseek(large, 1 << 20, SEEK_SET) == 0 && fputc('x', large) == 'x' && fclose(large) == 0);
    process_expect_output(TENON(NULL, "cache", "prune", "--max-mb=1", "--kind=times"), "removed 0 files, 0 bytes\n");
    process_expect_output(TENON(NULL, "cache", "prune", "--max-mb=1", "--kind=checks"), "removed 1 file, 1.0 MiB\n");
}
END_TEST

START_TEST(what_has_no_effect_is_a_mistake)
{
    process_expect_error(TENON(NULL, "cache", "empty"), 2, "'empty' is neither clear nor prune", NULL);
    process_expect_error(TENON(NULL, "cache", "clear", "--max-age", "3"), 2, "belong to tenon cache prune", NULL);
    process_expect_error(TENON(NULL, "cache", "--kind", "times"), 2, "belongs to tenon cache clear", NULL);
    process_expect_error(TENON(NULL, "cache", "clear", "--kind", "files"), 2, "there is no kind 'files'", NULL);
    process_expect_error(TENON(NULL, "cache", "prune", "--max-mb", "0"), 2, "--max-mb: 0 is out of range", NULL);
    char path[4200];
    snprintf(path, sizeof path, "%s/tenon", folder);
    ck_assert_int_eq(chmod(path, 0777), 0);
    process_expect_error(TENON(NULL, "cache"), 4, path, "others than this user can write there", NULL);
}
END_TEST

int main(void)
{
    TCase *all = suite_open("cli_cache", 0);
    tcase_add_checked_fixture(all, setup, NULL);
    suite_add(all, it_is_shown, it_is_cleared, it_is_pruned, what_has_no_effect_is_a_mistake);
    return process_main();
}
