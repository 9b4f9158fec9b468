/* Inside core/plugin: what a file says of itself before any of its code runs. */
#ifndef TENON_CORE_ELFNOTE_H
#define TENON_CORE_ELFNOTE_H

#include <tenon/tenon.h>

typedef struct elfnote {
    uint32_t abi_major, abi_minor_needed;
    char name[64], version[64];
} elfnote;

/* Reads the note of TN_PLUGIN from a file's content. TN_OK: a shared object for this machine with a note of a version
 * that this host can load. TN_DECLINED: not a plugin (no ELF file, no note), or nothing for this machine. TN_E_KERNEL:
 * another ABI, a damaged note; expected and got are in the message. note's name and version are filled as far as they
 * are known. */
tn_status elfnote_read(const void *content, size_t size, const char *file, elfnote *note, tn_error *err);

#endif
