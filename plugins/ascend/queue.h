/* Inside plugins/ascend: a model's queue with what the device keeps beside it. */
#ifndef ASCEND_QUEUE_H
#define ASCEND_QUEUE_H

#include "ascend.h"

enum { SHADOWS = 64, MASKS = 4, GRAPHS = 8 };

/* Device memory that was given back, of a rounded size: what waits in the stream may still use it, so it is only handed
 * out again to what follows in the stream, or released once the stream is empty. */
typedef struct npu_block {
    struct npu_block *next;
    void *at;
    size_t bytes;
} npu_block;

/* The host's copy of a small upload. */
typedef struct npu_shadow {
    const char *at; /* on the device; NULL: none                                                  */
    size_t bytes, room;
    void *copy;
} npu_shadow;

/* A mask of attention on the device, and the host's copy of it. bytes 0: none. */
typedef struct npu_mask {
    void *at, *copy;
    size_t bytes;
} npu_mask;

/* A mask that the device made of positions that it has: which, and how many uploads there had been. bytes 0: none. */
typedef struct npu_made {
    const void *q, *k;
    int64_t queries, keys, window;
    uint64_t uploads;
    void *at;
    size_t bytes;
} npu_made;

/* Memory that was handed out and is not given back. used: of each row of the cache [rows,C,..] that it is, behind the
 * last slot that CACHE_APPEND ever wrote; NULL: it is none so far. */
typedef struct npu_cache {
    const char *at, *first;  /* and its first row                                                  */
    size_t bytes, row, slot; /* and those from one row, and from one slot, to the next              */
    int64_t rows, *used;
} npu_cache;

/* graphs.c: calls in their order; a list that came, and the graph that it was captured as when it came again; and the
 * calls since the stream was last used otherwise, the first of which are in the stream. */
typedef struct npu_calls {
    ascend_launch *calls;
    size_t count, room;
} npu_calls;

typedef struct npu_graph {
    npu_calls list; /* empty: there is none                                                        */
    aclmdlRI model; /* NULL: not captured yet                                                      */
    uint64_t used;  /* when: the larger the later                                                  */
    uint32_t times; /* that it came again                                                          */
} npu_graph;

typedef struct npu_now {
    npu_calls list;
    size_t done;
    bool follows;  /* list has all of them                                                         */
    unsigned like; /* bit i: graph i begins so. Other than 0: none is in the stream                */
} npu_now;

typedef struct npu {
    struct tn_queue queue; /* first: kernels know this part                                       */
    npu_block *free;
    size_t cached; /* bytes of those                                                              */
    void *workspace;
    size_t workspace_bytes;
    char *staging; /* page-locked; NULL until something is uploaded                                */
    size_t staged; /* its bytes that copies in the stream may still read                          */
    npu_shadow shadows[SHADOWS];
    uint32_t next_shadow;
    npu_mask masks[MASKS], *last_mask;
    uint32_t next_mask;
    npu_made made[MASKS];
    uint32_t next_made;
    uint64_t uploads;  /* so far                                                                       */
    ascend_kept *kept; /* kept.c: a table; NULL: it is empty                                       */
    size_t kept_count;
    npu_cache *caches; /* in the order of their addresses                                          */
    size_t cache_count, cache_room;
    bool graphs;  /* calls are captured                                                            */
    size_t least; /* the shortest list that stays                                                  */
    npu_graph graph[GRAPHS];
    npu_now now;
    aclmdlRI past; /* ends when the stream is empty                                                */
    uint64_t uses;
    tn_error untold; /* of calls that went into the stream where there was nobody to tell          */
} npu;

static inline npu *npu_of(tn_queue *queue)
{
    return (npu *)(void *)queue;
}

/* runtime.c: the libraries, initialised once; [any thread]. */
tn_status npu_available(tn_error *err);
tn_status npu_open(int32_t ordinal, tn_queue **queue, tn_error *err);
void npu_close(tn_queue *queue);
tn_status npu_sync(tn_queue *queue, tn_error *err);

/* Makes the queue's context that of the calling thread. */
tn_status npu_enter(tn_queue *queue, tn_error *err);

/* "Ascend310P3", or "" before the device was found available. */
const char *npu_soc(void);

/* memory.c */
tn_status npu_alloc(tn_queue *queue, size_t bytes, void **out, tn_error *err);
void npu_free(tn_queue *queue, void *memory, size_t bytes);
void *npu_workspace(tn_queue *queue, uint64_t bytes, tn_error *err);
void npu_release(npu *n); /* all that the device holds; nothing waits in the stream any more         */

/* graphs.c. end_run: puts all that waits into the stream, as whoever uses the stream otherwise has to do first; this
 * thread has the queue's context. waited: the stream is empty. drop: so it is, and what graphs use is about to go. */
tn_status npu_graphs_open(npu *n, tn_error *err);
tn_status npu_launch(tn_queue *queue, const ascend_launch *l, bool kept, tn_error *err);
tn_status npu_end_run(tn_queue *queue, tn_error *err);
void npu_graphs_waited(npu *n);
void npu_graphs_drop(npu *n);
void npu_graphs_close(npu *n);

/* kept.c */
const ascend_kept *npu_kept_find(tn_queue *queue, const uint64_t key[2]);
bool npu_kept_keep(tn_queue *queue, const ascend_kept *kept);
void npu_kept_release(npu *n); /* nothing waits in the stream                                    */

/* masks.c */
void npu_mask_drop(npu *n, npu_mask *m);
void npu_made_drop(npu *n, npu_made *m);

/* caches.c: what is known of memory that was handed out, which is zero then; forgotten when it is given back, or when
 * somebody but CACHE_APPEND writes into it: what kernels write is not seen here, as it is not for shadows. appended: to
 * slots below end of a row. zero_from: all slots of a row, which t [B,S,K,D] shows, hold zeros from this one on;
 * INT64_MAX: nothing is known. */
void npu_cache_fresh(npu *n, const void *memory, size_t bytes);
void npu_cache_forget(npu *n, const void *memory);
void npu_cache_forget_all(npu *n);
void npu_cache_appended(npu *n, const tn_tensor *cache, int64_t row, int64_t end);
int64_t npu_cache_zero_from(const npu *n, const tn_tensor *t, int64_t row);

/* copies.c */
tn_status npu_upload(tn_queue *queue, void *device, const void *host, size_t bytes, tn_error *err);
tn_status npu_download(tn_queue *queue, void *host, const void *device, size_t bytes, tn_error *err);

/* shadows.c: when something is written, what was known of the place is forgotten. */
const void *npu_shadow_of(tn_queue *queue, const void *device, size_t bytes);
void npu_shadow_keep(npu *n, const void *device, const void *host, size_t bytes);
void npu_shadow_drop(npu *n, const void *device, size_t bytes);
void npu_shadow_drop_tensor(npu *n, const tn_tensor *t);
size_t npu_reach(const tn_tensor *t); /* bytes from a tensor's first element to behind its last one          */

#endif
