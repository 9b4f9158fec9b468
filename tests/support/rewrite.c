/* What happens to the file of a library while a program uses it. */
#include "rewrite.h"

#include "tempdir.h"

#include <check.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Over the bytes that are there, without cutting the file: as `rsync --inplace` or a patch does. */
static void write_over(const char *path, const char *content, size_t size)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    ck_assert_int_eq(pwrite(fd, content, size, 0), (ssize_t)size);
    close(fd);
}

/* Cut, and written again: as `cp` does. */
static void same_again(const char *path)
{
    size_t size;
    char *content = tempdir_read(path, &size);
    tempdir_write(path, content, size);
    free(content);
}

/* The content of path with 2 in the place of 1 behind the mark. Owned. */
static char *other_content(const char *path, size_t *size)
{
    const float one = 1, two = 2;
    char *content = tempdir_read(path, size), *at = content ? memmem(content, *size, "IN_USE_", 7) : NULL;
    while (at && (size_t)(at - content) + 20 <= *size && memcmp(at + 16, &one, sizeof one) != 0)
        at = memmem(at + 1, *size - (size_t)(at + 1 - content), "IN_USE_", 7);
    ck_assert_ptr_nonnull(at);
    memcpy(at + 16, &two, sizeof two);
    return content;
}

static void other_numbers(const char *path)
{
    size_t size;
    char *content = other_content(path, &size);
    write_over(path, content, size);
    free(content);
}

static void other_numbers_by_cp(const char *path)
{
    size_t size;
    char *content = other_content(path, &size);
    tempdir_write(path, content, size);
    free(content);
}

static void no_code(const char *path)
{
    size_t size;
    char *content = tempdir_read(path, &size);
    memset(content + 64, 0xcc, size - 64);
    write_over(path, content, size);
    free(content);
}

static void cut_to_nothing(const char *path)
{
    ck_assert_int_eq(truncate(path, 0), 0);
}

static void cut_in_its_code(const char *path)
{
    ck_assert_int_eq(truncate(path, 5000), 0); /* one page and a bit; behind the code are those for debuggers */
}

static void replace(const char *path)
{
    size_t size;
    char *content = other_content(path, &size), other[4096];
    snprintf(other, sizeof other, "%s.new", path);
    tempdir_write(other, content, size);
    ck_assert_int_eq(rename(other, path), 0);
    free(content);
}

static void take_away(const char *path)
{
    ck_assert_int_eq(unlink(path), 0);
}

const rewrite rewrites[] = {
    {"written again as it was", same_again, false},
    {"other numbers, in place", other_numbers, true},
    {"other numbers, cut first", other_numbers_by_cp, true},
    {"no code any more, in place", no_code, true},
    {"cut to nothing", cut_to_nothing, true},
    {"cut in its code", cut_in_its_code, true},
    {"replaced by another", replace, true},
    {"removed", take_away, false},
};
_Static_assert(sizeof rewrites / sizeof *rewrites == REWRITES, "the number of them");
