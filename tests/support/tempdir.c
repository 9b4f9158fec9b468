/* Temporary folders and files for tests. */
#include "tempdir.h"

#include "suite.h"

#include <dirent.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static void need(bool ok, const char *what)
{
    if (!ok) {
        perror(what);
        abort();
    }
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    (void)st, (void)type, (void)ftw;
    return remove(path);
}

static void delete_folder(void *folder)
{
    need(nftw(folder, remove_one, 16, FTW_DEPTH | FTW_PHYS) == 0, folder);
    free(folder);
}

char *tempdir_new(void)
{
    const char *base = getenv("TMPDIR");
    char *folder = tempdir_path(base && base[0] ? base : "/tmp", "tenon-test-XXXXXX");
    need(mkdtemp(folder) != NULL, folder);
    suite_keep(folder, delete_folder);
    return folder;
}

void tempdir_remove(char *folder)
{
    suite_forget(folder);
    if (folder)
        delete_folder(folder);
}

char *tempdir_path(const char *folder, const char *name)
{
    size_t size = strlen(folder) + strlen(name) + 2;
    char *path = malloc(size);
    need(path != NULL, name);
    snprintf(path, size, "%s/%s", folder, name);
    return path;
}

char *tempdir_at(const char *folder, const char *name)
{
    char *path = tempdir_path(folder, name);
    suite_keep(path, free);
    return path;
}

void tempdir_write(const char *path, const void *data, size_t size)
{
    FILE *f = fopen(path, "wb");
    need(f && (size == 0 || fwrite(data, 1, size, f) == size) && fclose(f) == 0, path);
}

void *tempdir_read(const char *path, size_t *size)
{
    FILE *f = fopen(path, "rb");
    need(f && fseek(f, 0, SEEK_END) == 0, path);
    long n = ftell(f);
    need(n >= 0, path);
    rewind(f);
    char *data = malloc((size_t)n + 1);
    need(data && fread(data, 1, (size_t)n, f) == (size_t)n, path);
    fclose(f);
    data[n] = '\0';
    *size = (size_t)n;
    return data;
}

void tempdir_put(const char *folder, const char *name, const char *text)
{
    char *path = tempdir_path(folder, name);
    tempdir_write(path, text, strlen(text));
    free(path);
}

void tempdir_copy_file(const char *from, const char *folder, const char *as)
{
    size_t size;
    void *data = tempdir_read(from, &size);
    char *to = tempdir_path(folder, as);
    tempdir_write(to, data, size);
    free(to);
    free(data);
}

bool tempdir_exists(const char *path)
{
    struct stat st;
    return lstat(path, &st) == 0;
}

void tempdir_copy(const char *from_folder, const char *to_folder)
{
    DIR *dir = opendir(from_folder);
    need(dir != NULL, from_folder);
    for (struct dirent *e; (e = readdir(dir));) {
        char *from = tempdir_path(from_folder, e->d_name);
        struct stat st;
        need(stat(from, &st) == 0, from);
        if (S_ISREG(st.st_mode))
            tempdir_copy_file(from, to_folder, e->d_name);
        free(from);
    }
    closedir(dir);
}

size_t tempdir_count(const char *folder)
{
    size_t count = 0;
    DIR *list = opendir(folder);
    need(list != NULL, folder);
    for (struct dirent *entry; (entry = readdir(list));)
        count += strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0;
    closedir(list);
    return count;
}
