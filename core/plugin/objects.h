/* Inside core/plugin: the libraries that a process has loaded, and what comes in with a plugin. */
#ifndef TENON_CORE_OBJECTS_H
#define TENON_CORE_OBJECTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>
#include <tenon/error.h>

/* A library's file as it was when it was read. identity: device, inode, size, times of the last change; as long as
 * these are the same, so is the content. */
typedef struct objects_file {
    char *path; /* absolute, without links; owned                                                  */
    char identity[128];
    char sha256[65]; /* "" until objects_hash                                                     */
} objects_file;

typedef struct objects_list {
    objects_file *files;
    size_t count;
} objects_list;

/* Adds the file at path without links, with its identity. In the list already: nothing. */
tn_status objects_add(objects_list *list, const char *path, tn_error *err);

/* Reads the file for its hash, unless that is known. false: it cannot be read, or is not what it was. */
bool objects_hash(objects_file *file);
const objects_file *objects_find(const objects_list *list, const char *path);
void objects_free(objects_list *list);

/* "DEVICE:INODE:SIZE:CHANGED:CHANGED" of the file at path; false: there is none. */
void objects_describe(const struct stat *st, char identity[128]);
bool objects_identity(const char *path, char identity[128]);
bool objects_unchanged(const objects_list *list);

/* Is the file of this identity and hash what it was? The identity says so; that of a file that changed a few seconds
 * ago may be the same after one more change, so its content is read. */
bool objects_is_same(const objects_file *file);

/* Which libraries there are. Filled by objects_look in one process. */
typedef struct objects_loaded {
    uintptr_t headers[1024]; /* of each, where its program headers lie                            */
    size_t count;
} objects_loaded;
void objects_look(objects_loaded *loaded);
bool objects_is_full(const objects_loaded *loaded); /* there may be more than it holds               */

/* Was the library with these program headers loaded afterwards? */
bool objects_is_new(const objects_loaded *before, const void *headers);

/* The names, NUL-terminated one behind the other, of those that are loaded now and were not then, without own. false:
 * there are more than fit. */
bool objects_new_names(const objects_loaded *before, const char *own, char *names, size_t size, size_t *count);

/* Calls the functions with which those libraries end, as the end of the process does. */
void objects_finish(const objects_loaded *before);

/* A hash of the code that runs here and of what decides which more the dynamic linker finds: all libraries that this
 * process has, also those that came in with plugins, each with its identity when it was first seen, LD_LIBRARY_PATH,
 * and the linker's cache. What is remembered of a plugin holds for that. false: not to be had. */
bool objects_surroundings(char sha256[65]);

#endif
