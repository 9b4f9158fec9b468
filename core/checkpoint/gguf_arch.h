/* Inside core/checkpoint: what the name of an architecture in a .gguf means, beyond what the file says. */
#ifndef TENON_CORE_GGUF_ARCH_H
#define TENON_CORE_GGUF_ARCH_H

#include "base/gguf.h"

/* What may stand behind "blk.N." or for itself, up to ".weight" or ".bias" or with it, and what it is called behind
 * "model.layers.N." or for itself. '#' stands for the number of an expert or a head: the tensor is a stack of them. */
typedef struct gguf_rename {
    const char *gguf, *hf;
} gguf_rename;

enum {
    GGUF_PAIRS = 1,     /* rows of q and k are stored so that neighbours are rotated, unlike Hugging Face's      */
    GGUF_PLUS_ONE = 2,  /* norms are stored as 1 + w                                                          */
    GGUF_PARTIAL = 4,   /* a part of each head may be rotated                                                 */
    GGUF_LATENT = 8,    /* keys and values are products of a latent                                           */
    GGUF_TWO_ROPES = 16 /* layers with a window have a rotation of their own, without scaling                */
};

typedef struct gguf_arch {
    const char *name; /* general.architecture                                                          */
    const char *when; /* this row only where the number of this key is not 0, or is `is`; NULL: always    */
    int64_t is;
    const char *model_type, *class_name;
    unsigned traits;
    int64_t period;           /* of layers with a window, the last of each period has none; 0: none has         */
    const char *implied;      /* keys of config.json that the file has not, or may lack; JSON, or NULL          */
    const gguf_rename *names; /* before the usual ones; {0} ends them; or NULL                               */
} gguf_arch;

/* That of the file; NULL: TN_E_INPUT names it and those that are supported. */
const gguf_arch *gguf_arch_of(const gguf *file, tn_error *err);

/* "ARCHITECTURE.key" in key[128]. */
const char *gguf_arch_key(const gguf_arch *arch, const char *key, char out[static 128]);

/* What the tensor "blk.N.rest", or another one, is called: the row, and where name goes on behind it; NULL: none. */
const gguf_rename *gguf_arch_rename(const gguf_arch *arch, const char *name, const char **rest);

/* ---- the other way round ------------------------------------------------------------------------------ */

/* The row that a checkpoint of that model_type is written as; NULL: TN_E_INPUT names those that are. */
const gguf_arch *gguf_arch_written(const char *model_type, tn_error *err);

/* What a tensor is called in a .gguf, behind "blk.N." or for itself, without the rest of its name; *rest of hf is that.
 * *number: of the expert, in whose stack it is, or -1. NULL: none. */
const gguf_rename *gguf_arch_name(const gguf_arch *arch, const char *hf, const char **rest, int64_t *number);

/* Keys of config.json and what a .gguf calls them, behind "ARCHITECTURE." (gguf_config.c); NULL behind the last. COUNT
 * and NUMBER: 0 is as if it were absent. */
typedef enum gguf_field_kind { INTEGER, COUNT, NUMBER, FLAG } gguf_field_kind;
typedef struct gguf_field {
    const char *gguf, *config;
    gguf_field_kind kind;
    bool needed;
} gguf_field;
const gguf_field *gguf_config_field(size_t index);

/* The tensor of that name in the file; false where there is none. */
bool gguf_arch_tensor(const gguf *file, const char *name, tn_tensor *tensor);

#endif
