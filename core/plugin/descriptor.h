/* Inside core/plugin: a plugin's descriptor, read and checked. */
#ifndef TENON_CORE_DESCRIPTOR_H
#define TENON_CORE_DESCRIPTOR_H

#include "plugin/elfnote.h"

#include <tenon/group.h>

/* One copied string or list. */
typedef struct descriptor_piece {
    struct descriptor_piece *next;
} descriptor_piece;

/* Copies in the host's struct sizes: what the plugin's version lacks is zero. Strings and lists are copied too;
 * functions stay the plugin's, which is never unloaded. */
typedef struct descriptor {
    tn_plugin plugin; /* kernels, device and group point to the copies                                     */
    tn_kernel *kernels;
    size_t kernel_count;
    tn_impl *impls; /* of all kernels                                                            */
    tn_device *device;
    tn_group_kind *group;
    descriptor_piece *pieces; /* what the structs point to                                        */
} descriptor;

/* Normalises and validates what file registered. note: what the file said of itself, or NULL for a plugin that is
 * part of the program. Owned: descriptor_free. NULL with an error that names file, kernel and field. */
descriptor *descriptor_read(const tn_plugin *raw, const elfnote *note, const char *file, tn_error *err);
void descriptor_free(descriptor *d);

/* Impls, device, group and pieces are somebody else's from now on: descriptor_free leaves them alone. */
void descriptor_keep(descriptor *d);

/* Lower case letters, digits, '_' and '-', at most 31 of them, and not "auto" or "none". */
bool descriptor_is_device_name(const char *name);

#endif
