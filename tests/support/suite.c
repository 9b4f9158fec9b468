/* The suite of a test program. */
#include "suite.h"

#include <stdlib.h>
#include <string.h>

static Suite *suite;

TCase *suite_open(const char *name, double seconds)
{
    TCase *tcase = tcase_create(name);
    if (!suite)
        suite = suite_create(name);
    if (seconds > 0)
        tcase_set_timeout(tcase, seconds);
    suite_add_tcase(suite, tcase);
    return tcase;
}

void suite_add_all(TCase *tcase, const TTest *const *tests)
{
    for (; *tests; tests++)
        tcase_add_test(tcase, *tests);
}

int suite_run(void)
{
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}

void suite_expect_in(const char *text, const char *words)
{
    ck_assert_msg(text && strstr(text, words), "'%s' is not in: %s", words, text ? text : "(nothing)");
}
