/* Walking folders of cases. */
#include "folders.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int is_gguf(const struct dirent *entry)
{
    const char *dot = strrchr(entry->d_name, '.');
    return dot && strcmp(dot, ".gguf") == 0;
}

bool folders_gguf(const char *folder, char *path, size_t size)
{
    struct dirent **entries = NULL;
    int count = scandir(folder, &entries, is_gguf, alphasort);
    bool fine = count > 0 && snprintf(path, size, "%s/%s", folder, entries[0]->d_name) < (int)size;
    for (int i = 0; i < count; i++)
        free(entries[i]);
    free(entries);
    return fine;
}

static int add(tally *sum, const char *folder, bool (*is_case)(const char *), tally (*check)(const char *))
{
    if (!is_case(folder))
        return 0;
    tally one = check(folder);
    sum->passed += one.passed;
    sum->failed += one.failed;
    return 1;
}

int folders_main(int argc, char **argv, const char *tool, const char *what, bool (*is_case)(const char *),
                 tally (*check)(const char *))
{
    struct dirent **entries = NULL;
    tally sum = {0, 0};
    if (argc != 2) {
        fprintf(stderr, "usage: %s DIR\n", tool);
        return 2;
    }
    int count = scandir(argv[1], &entries, NULL, alphasort), found = 0;
    if (count < 0)
        perror(argv[1]);
    else
        found = add(&sum, argv[1], is_case, check);
    for (int i = 0; i < count; i++) {
        char folder[4096];
        int n = snprintf(folder, sizeof folder, "%s/%s", argv[1], entries[i]->d_name);
        if (entries[i]->d_name[0] != '.' && n < (int)sizeof folder)
            found += add(&sum, folder, is_case, check);
        free(entries[i]);
    }
    free(entries);
    if (found == 0) {
        printf("FAILED %s: no folder with %s\n", argv[1], what);
        sum.failed++;
    }
    printf("%ld passed, %ld failed\n", sum.passed, sum.failed);
    return sum.failed ? 1 : 0;
}
