/* Folders with one quantised matrix, of the golden data in tests/data/quantised, and what becomes of them. */
#ifndef TEST_QUANTISED_FOLDER_H
#define TEST_QUANTISED_FOLDER_H

#include "checkpoint/checkpoint.h"

enum { FOLDER_TENSORS = 16 };

/* The tensors of one case: copies, until the test ends, which may be changed. */
typedef struct quantised_folder {
    tn_named_tensor tensors[FOLDER_TENSORS];
    size_t count;
    const char *settings; /* the file's name; NULL: config.json                                       */
    tn_tensor value;      /* f32                                                                           */
} quantised_folder;

/* Those of tests/data/quantised, each called stem + its name there. */
quantised_folder quantised_folder_of(const char *name, const char *stem);

/* The tensor called so; NULL: there is none. */
tn_tensor *quantised_folder_tensor(quantised_folder *f, const char *name);

/* Writes the files, config.json or an older one that says it, opens and resolves them: NULL with err filled where that
 * fails. Closed when the test ends. */
shards *quantised_folder_resolve(const quantised_folder *f, const char *config, tn_error *err);

#endif
