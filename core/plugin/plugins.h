/* Inside core/plugin: what is known of every plugin file. */
#ifndef TENON_CORE_PLUGINS_H
#define TENON_CORE_PLUGINS_H

#include "plugin/descriptor.h"

/* A copy of text that lives as long as the process; the same text gives the same pointer. NULL when out of memory. */
const char *plugins_intern(const char *text);

/* One file. dev and ino recognise it under another name. */
typedef struct plugins_entry {
    tn_plugin_info info; /* strings are interned                                                    */
    uint64_t dev, ino;
    char identity[128]; /* of the file as it was read (objects.h); "": it is part of the program    */
    bool locked_out;    /* the lock of the last scan does not have it so                               */
} plugins_entry;

/* Adds an entry or replaces the one of the same file name. Its strings are interned here. */
tn_status plugins_record(const plugins_entry *entry, tn_error *err);

/* The loaded entry with that name, that inode, or that content (each may be NULL or 0); false when there is none. */
bool plugins_is_loaded(const char *file, uint64_t dev, uint64_t ino, const char *sha256);

/* Is there another content now in the loaded file of that name, which lies at path? What was opened stays. */
bool plugins_is_outdated(const char *file, const char *path);

/* The digest of a loaded file, in hexadecimal. false: not known, as that of a plugin that is part of the program. */
#define PLUGINS_SHA256 65
bool plugins_sha256(const char *file, char sha256[PLUGINS_SHA256]);

/* TN_E_KERNEL with the first file that the lock of the last scan kept out, and why. Forgotten when a scan begins. */
tn_status plugins_check_locked_out(tn_error *err);
void plugins_forget_locked_out(void);

/* "; /a/b.so was not taken: WHY" of the first file that was refused or quarantined; "" where none was. It may have been
 * what somebody misses. */
void plugins_tell_refused(char *text, size_t size);

/* The file name of a library that came in with a plugin: a pin may be its. Without memory it is not remembered. */
void plugins_add_library(const char *name);
bool plugins_has_library(const char *name);

/* registry.c: takes all kernels and the device of a plugin, or none of them. The descriptor is taken on success. */
tn_status registry_add(descriptor *d, const char *file, tn_error *err);

#endif
