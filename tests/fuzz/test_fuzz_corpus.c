/* Replays the fuzzers' corpus: what once was interesting stays tested, without a fuzzer. */
#include "fuzz_safetensors.c"
#include "fuzz_config.c"
#include "tempdir.h"

#include <check.h>
#include <dirent.h>

/* Every file of the folder as it is, cut at a third, and with a bit changed at several places. */
static int replay(const char *folder, int (*fuzz)(const uint8_t *, size_t))
{
    int count = 0;
    DIR *dir = opendir(folder);
    ck_assert_msg(dir != NULL, "%s", folder);
    for (struct dirent *e; (e = readdir(dir));) {
        if (e->d_name[0] == '.')
            continue;
        char *path = tempdir_path(folder, e->d_name);
        size_t size;
        uint8_t *data = tempdir_read(path, &size);
        fuzz(data, size);
        fuzz(data, size / 3);
        for (size_t i = 0; i < size; i += size / 16 + 1) {
            data[i] ^= (uint8_t)(1u << i % 8);
            fuzz(data, size);
            data[i] ^= (uint8_t)(1u << i % 8);
        }
        free(data);
        free(path);
        count++;
    }
    closedir(dir);
    return count;
}

START_TEST(safetensors)
{
    ck_assert_int_ge(replay("tests/data/fuzz/safetensors", fuzz_safetensors), 10);
}
END_TEST

START_TEST(config)
{
    ck_assert_int_ge(replay("tests/data/fuzz/config", fuzz_config), 10);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("fuzz_corpus");
    TCase *tc = tcase_create("corpus");
    tcase_set_timeout(tc, 120);
    tcase_add_test(tc, safetensors);
    tcase_add_test(tc, config);
    suite_add_tcase(suite, tc);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
