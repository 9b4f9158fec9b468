/* Temporary folders and files for tests. Failures of the system abort the test. */
#ifndef TEST_TEMPDIR_H
#define TEST_TEMPDIR_H

#include <stdbool.h>
#include <stddef.h>

/* A fresh folder below $TMPDIR or /tmp, until the test ends (suite.h). tempdir_remove deletes it before that, or where
 * no test runs, with all that it holds, and frees the name. */
char *tempdir_new(void);
void tempdir_remove(char *folder);

/* folder/name: until the test ends; owned: free(). */
char *tempdir_at(const char *folder, const char *name);
char *tempdir_path(const char *folder, const char *name);

void tempdir_write(const char *path, const void *data, size_t size);
void *tempdir_read(const char *path, size_t *size); /* owned: free(); ends in NUL, which size does not count */
void tempdir_put(const char *folder, const char *name, const char *text);     /* folder/name with this text */
void tempdir_copy_file(const char *from, const char *folder, const char *as); /* as folder/as                */
bool tempdir_exists(const char *path);
size_t tempdir_count(const char *folder); /* what is in it                                          */
void tempdir_copy(const char *from_folder, const char *to_folder); /* plain files only             */

#endif
