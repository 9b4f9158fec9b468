/* The suite of a test program. */
#include "suite.h"

#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static Suite *suite;

/* What the running test keeps. */
typedef struct kept {
    void *what;
    void (*release)(void *what);
    struct kept *before;
} kept;

static kept *last;
static bool running;

void suite_keep(void *what, void (*release)(void *what))
{
    kept *k = running && what ? malloc(sizeof *k) : NULL;
    if (!k)
        return;
    *k = (kept){what, release, last};
    last = k;
}

void suite_forget(const void *what)
{
    for (kept **at = &last; *at; at = &(*at)->before)
        if ((*at)->what == what) {
            kept *k = *at;
            *at = k->before;
            free(k);
            return;
        }
}

static void begin_test(void)
{
    running = true;
}

static void end_test(void)
{
    for (kept *k; (k = last);) {
        last = k->before;
        k->release(k->what);
        free(k);
    }
    running = false;
}

TCase *suite_open(const char *name, double seconds)
{
    TCase *tcase = tcase_create(name);
    if (!suite)
        suite = suite_create(name);
    if (seconds > 0)
        tcase_set_timeout(tcase, seconds);
    tcase_add_checked_fixture(tcase, begin_test, end_test);
    suite_add_tcase(suite, tcase);
    return tcase;
}

void suite_add_all(TCase *tcase, const TTest *const *tests)
{
    for (; *tests; tests++)
        tcase_add_test(tcase, *tests);
}

void suite_limit_child(void)
{
    signal(SIGALRM, SIG_DFL);
    alarm(300);
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
