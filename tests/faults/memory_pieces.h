/* Pieces of work that are done again and again, with another allocation failing each time. */
#ifndef TEST_MEMORY_PIECES_H
#define TEST_MEMORY_PIECES_H

#include <stddef.h>
#include <stdint.h>
#include <tenon/tenon.h>

/* work: on what path names; sum: of what is to be the same each time; returns what the library said. */
typedef struct piece {
    const char *name, *path;
    tn_status (*work)(const char *path, uint64_t *sum, tn_error *err);
    bool kernels; /* what goes wrong may be said of a kernel */
} piece;

extern const piece pieces[];
extern const size_t piece_count;

/* What they need: a folder for files, settings, kernels of this program. */
void pieces_open(void);
void pieces_close(void);
const char *pieces_folder(void);

/* memory_pieces_media.c: the models that see are below the folder, into which they are put first. */
void pieces_put_seeing(const char *folder);
tn_status piece_see(const char *path, uint64_t *sum, tn_error *err);
tn_status piece_hear(const char *path, uint64_t *sum, tn_error *err);
tn_status piece_constrain(const char *path, uint64_t *sum, tn_error *err);

/* memory_pieces_train.c */
tn_status piece_learn(const char *path, uint64_t *sum, tn_error *err);
tn_status piece_adapt(const char *path, uint64_t *sum, tn_error *err);

/* memory_pieces_dataset.c */
tn_status piece_read_data(const char *path, uint64_t *sum, tn_error *err);

/* memory_pieces_engine.c */
tn_status piece_serve(const char *path, uint64_t *sum, tn_error *err);

/* memory_pieces_lock.c */
tn_status piece_lock(const char *path, uint64_t *sum, tn_error *err);

/* memory_pieces_borrow.c */
tn_status piece_borrow(const char *path, uint64_t *sum, tn_error *err);

void piece_add(uint64_t *sum, const void *data, size_t size);
void piece_add_file(uint64_t *sum, const char *path); /* what is in it, without taking memory         */

#endif
