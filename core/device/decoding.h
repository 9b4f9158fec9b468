/* Inside core: foreign files go through the libraries that read them in a child process, which has nothing open, can
 * open nothing, has some seconds, 2 GiB of memory beside what there is and, with libseccomp, no network: what breaks a
 * library breaks the child. */
#ifndef TENON_CORE_DECODING_H
#define TENON_CORE_DECODING_H

#include <tenon/error.h>

#include <stddef.h>
#include <stdint.h>

/* What parent and child share begins with it. */
typedef struct decoding {
    const uint8_t *file;
    size_t size;
    char what[160]; /* is wrong; "": nothing                                                           */
} decoding;

typedef struct decoding_kind {
    size_t most;  /* bytes of a file                                                                    */
    size_t bytes; /* that are shared: zeros, which take memory as they are written                      */
    void (*begin)(decoding *d, const void *ctx); /* before the child: what it needs to know; or NULL      */
    void (*read)(decoding *d);                   /* in the child                                         */
    /* Afterwards, unless something is wrong. What the child wrote is anything, if it was broken. */
    tn_status (*take)(const decoding *d, const char *path, void *ctx, tn_error *err);
} decoding_kind;

/* TN_E_INPUT with one line on what is wrong with the file at path, TN_E_MEMORY, or what take returned. */
tn_status decoding_run(const decoding_kind *kind, const char *path, void *ctx, tn_error *err);

/* In the child: the first reason stays. */
void decoding_fail(decoding *d, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
