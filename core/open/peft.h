/* Inside core: an adapter around a model's products (peft's LoRA): its files, where it belongs, and its tensors. */
#ifndef TENON_CORE_PEFT_H
#define TENON_CORE_PEFT_H

#include "base/random.h"
#include "graph/build.h"

#include <tenon/model.h>

/* What adapter_config.json, or a tn_lora, says. */
typedef struct peft_config {
    config_file *file; /* owned                                                                     */
    char *text;        /* the same as JSON; owned                                                    */
    int64_t rank;
    double alpha, dropout;
    bool rslora;
    uint64_t seed; /* of what is drawn                                                             */
} peft_config;

enum { PEFT_LARGEST_RANK = 1 << 20 };

/* Opens FOLDER/adapter_config.json, or what peft would write for a fresh adapter of a folder's model. What is not
 * supported is an error that names the key. peft_config.c */
tn_status peft_config_open(peft_config *c, const char *folder, tn_error *err);
tn_status peft_config_make(peft_config *c, const tn_lora *lora, const char *model, bool mixture, tn_error *err);
void peft_config_close(peft_config *c);

/* Whether the module of that path has factors; linear: its class is one of those that "all-linear" means. False after
 * an error, too, which sticks in *status. peft_match.c */
bool peft_targets(const peft_config *c, const char *path, bool linear, tn_status *status, tn_error *err);
/* The rank of the module's factors, and what their product is multiplied by. peft_match.c */
typedef struct peft_scale {
    int64_t rank;
    double scale;
} peft_scale;
peft_scale peft_scale_of(const peft_config *c, const char *path, tn_status *status, tn_error *err);

/* A tensor as the file has it: dense in memory, or every so many elements of one that all experts share. */
typedef struct peft_view {
    char *name; /* without PEFT_PREFIX; owned                                                    */
    tn_tensor tensor;
} peft_view;

typedef struct peft_adapter {
    peft_config config;
    peft_view *views; /* of the file's names                                                      */
    size_t view_count, view_capacity;
    tn_tensor *tensors; /* A and B of all sites: f32, dense, on pages of the model                   */
    size_t count, capacity;
} peft_adapter;

#define PEFT_PREFIX "base_model.model."

/* Reads (folder) or makes (lora) an adapter for the model that b built, and puts it around b->graph's products, in
 * memory of b->copies. model: the folder that the model was opened from. An error sticks in b. Owned: peft_close. */
peft_adapter *peft_attach(graph_builder *b, const char *folder, const tn_lora *lora, const char *model, bool training);
void peft_close(peft_adapter *a);

/* The view of that name, with or without the prefix; NULL: there is none. */
const peft_view *peft_find(const peft_adapter *a, const char *name);

/* ---- between peft.c, peft_tensors.c and peft_experts.c ---------------------------------------------------------- */

enum { PEFT_NAME = 512 };

typedef struct attaching {
    peft_adapter *a;
    graph_builder *b;
    graph_builder of; /* b, but that it finds the file's tensors                                     */
    shards *file;     /* empty: it is fresh                                                         */
    bool fresh, training;
    random_state random;
    int64_t sites;
} attaching;

/* Which of the two: A is random and B zero where they are made. */
typedef enum peft_factor { PEFT_A, PEFT_B } peft_factor;

/* Zeros [rows, columns] that are trained. */
bool peft_new_tensor(attaching *t, int64_t rows, int64_t columns, tn_tensor *out);
/* The view is what the file calls name: its values are read, or made. to: of the same shape, in a tensor of the above.
 */
bool peft_fill(attaching *t, const char *name, peft_factor which, const tn_tensor *to);
/* Does the file have the tensor "<module>.<what>" of this shape (-1: any)? name becomes what it calls it, shape that of
 * it. Another shape is an error. */
bool peft_has(attaching *t, const graph_module *m, const char *what, int64_t rows, int64_t columns, char *name,
              int64_t shape[2]);
/* Is the path's rank that of adapter_config.json, and is it a target? Errors otherwise. name: of the tensor. */
bool peft_agrees(attaching *t, const char *path, const char *name, int64_t rank, peft_scale *scale);
/* The operations around a site know that it has an adapter inside: no kernel of today takes them then. */
void peft_tell_outer(graph_site *site);

/* Adapters beside the experts of a MOE_EXPERTS. peft_experts.c */
void peft_experts(attaching *t, graph_site *site);

#endif
