/* Included by `make lint-tidy` before each file: what the analyzer, which sees one file at a time, cannot know. */
#include <tenon/error.h>

/* tn_fail returns the status that it is given. */
#define tn_fail(err, code, ...) ((void)tn_fail(err, code, __VA_ARGS__), (code))
