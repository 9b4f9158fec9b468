/* A target on the files of its corpus. */
#ifndef TEST_CORPUS_H
#define TEST_CORPUS_H

#include "suite.h"
#include "tempdir.h"

#include <check.h>
#include <dirent.h>
#include <stdint.h>
#include <stdlib.h>

/* Every file of the folder as it is, cut at a third, and with a bit changed at several places. How many there are. */
static inline int corpus_replay(const char *folder, int (*fuzz)(const uint8_t *, size_t))
{
    int count = 0;
    DIR *dir = opendir(folder);
    ck_assert_msg(dir != NULL, "%s", folder);
    for (struct dirent *e; (e = readdir(dir));) {
        if (e->d_name[0] == '.')
            continue;
        char *path = tempdir_at(folder, e->d_name);
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
        count++;
    }
    closedir(dir);
    return count;
}

#endif
