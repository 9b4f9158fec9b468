/* Tenon: how processes that compute one model together exchange bytes. A plugin brings a kind of group, or a program
 * makes one of its own and gives it to tn_model_open. Groups move bytes and never add: what is added is added by the
 * host, in the order of ranks, so results do not depend on a library's choice of algorithm or on timing. */
#ifndef TENON_GROUP_H
#define TENON_GROUP_H

#include <tenon/error.h>

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* One process's end. The functions are called by one thread at a time, by all ranks (pass: by two) in the same order
 * with the same sizes. An error of one of them ends the group: nothing of it is called any more, and the process ends
 * with an exit status that is not 0, at which whatever started the ranks ends the others. Memory that they are given
 * lies in pages of its own, which no child of this process has. */
typedef struct tn_group {
    uint32_t size;
    int32_t rank, ranks;
    void *self; /* of whoever made it; the first argument of all below                            */
    /* all has the bytes[0] bytes of rank 0, then the bytes[1] of rank 1, ...; a rank's own are in their place when it
     * calls, all are when this returns. TN_E_KERNEL: a rank did not answer in time, which the message names. */
    tn_status (*gather)(void *self, void *all, const int64_t *bytes, tn_error *err);
    /* The bytes of rank 0 become those of all. idle: nobody knows when rank 0 will call it; who waits sleeps, and gives
     * up only where rank 0 gives no sign of life. */
    tn_status (*tell)(void *self, void *data, int64_t bytes, bool idle, tn_error *err);
    void (*close)(void *self); /* of all ranks together, after no error; or NULL                   */
    /* The bytes of rank from become those of rank to. Called by these two alone, which are not the same; messages
     * between two ranks come in the order in which they were sent, those of tell among them. Where stages have several
     * ranks what these gather is passed, too. NULL: no pipelines. */
    tn_status (*pass)(void *self, int32_t from, int32_t to, void *data, int64_t bytes, tn_error *err);
} tn_group;

/* What a plugin brings (tn_plugin.group, ABI 2.5). */
typedef struct tn_group_kind {
    uint32_t size;
    const char *name;    /* "mpi": lower case letters, digits, '_' and '-'                         */
    const char *summary; /* or NULL                                                                */
    /* Fills all of group but size. patience: seconds that a wait for other ranks may last. Called once in a
     * process. */
    tn_status (*open)(tn_group *group, double patience, tn_error *err);
} tn_group_kind;

#ifdef __cplusplus
}
#endif
#endif
