/* Good model folders, broken on purpose: copy one, change one thing, and see what is said about it. */
#ifndef TEST_BROKEN_H
#define TEST_BROKEN_H

#include <stddef.h>
#include <tenon/tenon.h>

/* A copy of tests/data/models/NAME in a temporary folder. As tempdir_new. */
char *broken_copy(const char *name);

/* Sets a key of folder/file (a JSON object) to a value written in JSON, or removes it (NULL). path may reach into
 * objects: "rope_parameters/rope_type". */
void broken_json(const char *folder, const char *file, const char *path, const char *value);

/* The same for the header of a safetensors file; the data stay as they are. */
void broken_header(const char *folder, const char *file, const char *path, const char *value);

/* Writes the file again without one tensor. */
void broken_remove_tensor(const char *folder, const char *file, const char *name);

/* Cuts a file to its first size bytes. */
void broken_truncate(const char *folder, const char *file, size_t size);

/* Writes a safetensors file from a header's text and size zero bytes of data. */
void broken_raw(const char *path, const char *header, size_t size);

/* Aborts the test unless err has this code, is one line, and every word (until NULL) stands in its where or message. */
void broken_expect(const tn_error *err, tn_status code, ...) __attribute__((sentinel));

#endif
