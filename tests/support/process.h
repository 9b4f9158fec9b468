/* Running the program `tenon` as a user does, and looking at what it prints and how it ends. */
#ifndef TEST_PROCESS_H
#define TEST_PROCESS_H

#include <check.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

typedef struct process_result {
    int status;      /* exit status, or 128 + the signal that ended it                          */
    char *out, *err; /* end in NUL; until the test ends                                         */
    size_t out_length;
} process_result;

/* The folder of build results: $TENON_BUILD, or the one above the running test program. Static storage. */
const char *process_build(void);

/* Copies BUILD/FROM to the folder. */
void process_copy_built(const char *from, const char *folder, const char *as);

/* BUILD/tenon with these arguments (NULL ends them), input on stdin. Aborts the test when it runs for ten minutes, and
 * when escape sequences or carriage returns come out, which have no business in a pipe. */
process_result process_run(const char *input, const char *const *arguments);

/* What it printed is not wanted any longer. */
void process_free(process_result *result);

/* process_run, written shorter. */
#define TENON(input, ...) process_run(input, (const char *const[]){__VA_ARGS__, NULL})

/* What it said on stderr. Where plugins are tried without a filter, which a build may lack, kernels and check say so in
 * a first line, which is left out here (test_cli_kernels looks at it), and so are behind it the warnings of a machine
 * so busy that threads of a kernel never met in its check, and of one with a processor for two threads. In r, which
 * stays the caller's. */
const char *process_said(const process_result *r);

/* The first line of what it said on stderr that is a warning, but for those of the machine; NULL: there is none. */
const char *process_warning(const char *err);

/* Does it say that other programs had the processors while kernels were checked? What was found then is not remembered.
 */
bool process_was_busy(const char *said);

/* process_run until it fails, or does not say so; forty times at most. */
process_result process_run_checked(const char *input, const char *const *arguments);
#define TENON_CHECKED(input, ...) process_run_checked(input, (const char *const[]){__VA_ARGS__, NULL})

/* Aborts the test unless the program ended with this status, printed nothing on stdout, and one line on stderr that
 * begins with "tenon: " and holds every word (until NULL). */
void process_expect_error(process_result r, int status, ...) __attribute__((sentinel));

/* Aborts the test unless the program ended well and out (NULL: anything) is what it printed. */
void process_expect_output(process_result r, const char *out);

/* The same in steps, for tests that do something meanwhile. out and err are the child's file descriptors, taken. */
pid_t process_start(const char *const *arguments, int in, int out, int err);
int process_wait(pid_t pid); /* as status above                                                */

/* Waits until pid has (or no longer has) a handler of its own for the signal. */
void process_await_handler(pid_t pid, int signal_number, bool installed);

/* Runs the suite (suite.h) as main does, with the user's own configuration and caches out of the way. Returns the exit
 * status. */
int process_main(void);

#endif
