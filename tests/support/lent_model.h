/* Models over lent memory: the tensors of a folder of tests/data/models, as its file has them. */
#ifndef TEST_LENT_MODEL_H
#define TEST_LENT_MODEL_H

#include <tenon/tenon.h>

enum { LENT_MOST = 4096 };

/* What is lent: to be changed before it is. Released with the test that made it (suite.h). */
typedef struct lent_model {
    char *config;
    const char *names[LENT_MOST];
    tn_tensor tensors[LENT_MOST];
    size_t count;
    void *memory[LENT_MOST];
    size_t memory_count;
} lent_model;

/* Copies of the folder's tensors. */
lent_model *lent_of(const char *folder);

/* Its tensor of that name, which must be there. */
tn_tensor *lent_at(lent_model *l, const char *name);

/* Another one; memory that ends with what is lent. */
void lent_add(lent_model *l, const char *name, tn_tensor tensor);
void *lent_keep(lent_model *l, size_t bytes);

/* Without it. */
void lent_without(lent_model *l, const char *name);

/* Words of the config replaced by others of any length. */
void lent_rewrite(lent_model *l, const char *from, const char *to);

/* Kept until the test ends, with members of tn_model_options. */
#define lent_open(l, ...) lent_open_as(l, &(tn_model_options){.size = sizeof(tn_model_options), __VA_ARGS__})
tn_model *lent_open_as(const lent_model *l, const tn_model_options *options);

#endif
