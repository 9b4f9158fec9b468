/* Inside core/checkpoint: what a set of tensors holds. */
#ifndef TENON_CORE_SHARDS_H
#define TENON_CORE_SHARDS_H

#include "base/gguf.h"
#include "base/names.h"
#include "checkpoint/checkpoint.h"

typedef struct located {
    const char *name;
    char *path; /* owned, with name in it: in a record the tree's name stands before it             */
    const char *file;
    tn_tensor tensor;
    shards_parts parts;
    const void *used; /* where the model has it                                                     */
    tn_dtype used_as; /* shards_take's                                                              */
    bool taken, hidden;
} located;

struct shards {
    char *folder;
    tn_safetensors **files; /* sorted by name                                                     */
    size_t file_count;
    located *tensors; /* file by file, in the order of their data                                 */
    size_t count;
    int64_t bytes;
    names index;
    size_t capacity;   /* of tensors                                                                  */
    struct gguf *gguf; /* NULL: safetensors                                                           */
    void **kept;       /* memory for tensors that are made of others                                  */
    size_t kept_count;
    int64_t kept_bytes;
    const char *zeros; /* what a record's tensors hold; NULL: a set of files                          */
    tn_dtype dtype;    /* of the files that a record stands for                                       */
    bool **read;       /* of each file, which pieces (shards_watch); NULL: nobody asks                 */
};

#endif
