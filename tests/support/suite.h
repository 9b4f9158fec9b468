/* The suite of a test program. */
#ifndef TENON_TESTS_SUITE_H
#define TENON_TESTS_SUITE_H

#include <check.h>

/* A test case of the program's suite, which the first one begins. seconds: when a test of it has hung; 0: as usual. */
TCase *suite_open(const char *name, double seconds);

/* Adds tests. */
#define suite_add(tcase, ...) suite_add_all(tcase, (const TTest *const[]){__VA_ARGS__, NULL})
void suite_add_all(TCase *tcase, const TTest *const *tests);

/* Keeps what a test has taken until it ends: then release is called, for what was kept last first. Outside of tests and
 * what is set up for each nothing is kept, and it stays the caller's. */
void suite_keep(void *what, void (*release)(void *what));

/* It has been released. */
void suite_forget(const void *what);

/* Fails the test unless the words are in the text, which may be NULL. */
void suite_expect_in(const char *text, const char *words);

/* In a child that a test forked: SIGALRM ends it when it hangs, after five minutes. check's own handler of that signal,
 * which the child has from the test, would end both, without a word of the child. */
void suite_limit_child(void);

/* Runs it; the program's exit status. */
int suite_run(void);

#endif
