/* For check tools: a folder of cases, or a folder of such folders. */
#ifndef TENON_TESTS_FOLDERS_H
#define TENON_TESTS_FOLDERS_H

#include <stdbool.h>
#include <stddef.h>

typedef struct tally {
    long passed, failed;
} tally;

/* Writes the path of the first .gguf in a folder, in the order of names; false where there is none. */
bool folders_gguf(const char *folder, char *path, size_t size);

/* The whole of a tool TOOL DIR: checks DIR where is_case says so, and each folder in it, in the order of their names;
 * prints the closing line and returns the exit status. None: a failure that says "no folder with WHAT". */
int folders_main(int argc, char **argv, const char *tool, const char *what, bool (*is_case)(const char *folder),
                 tally (*check)(const char *folder));

#endif
