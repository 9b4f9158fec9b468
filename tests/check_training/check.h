/* What the parts of check_training share. */
#ifndef CHECK_TRAINING_H
#define CHECK_TRAINING_H

#include <jansson.h>
#include <stdbool.h>
#include <tenon/tenon.h>

enum { SPECS = 8 };

typedef struct options {
    const char *specs[SPECS], *plugins;
    int spec_count;
    bool differences;
    tn_config *config;
    int64_t passed, failed;
} options;

enum { NAME = 512 };

/* A batch of a case, and what torch makes of it. */
typedef struct golden {
    const char *name, *batch; /* "padded", "packed"                                                */
    const char *kind;         /* of the figures: the batch's, or "padded.zero"                      */
    const char *rough;        /* of gradients in 16 bits: "bf16", "amp", "pure"                     */
    char model[4096];
    double loss, items, norm, bound, router; /* router: the factor of the routers' loss                */
    tn_precision precision;
    tn_safetensors *file, *texts_file;
    int64_t *ids, *labels, *lengths, texts;
} golden;

/* part: "full", "lora": the object of case.json and the file with gradients. False: there is no such thing; close it
 * anyway. */
bool golden_open(golden *g, const char *folder, const char *name, const char *batch, const char *part,
                 const char *kind);
void golden_close(golden *g);

/* Loss and gradients of a model, which is in f32 or bf16, with these kernels. */
void check_spec(options *o, golden *g, tn_model *model, const char *spec, bool f32);

/* Adapters of a case. adapters.c */
void check_adapters(options *o, const char *folder, const char *name);

/* Factors that were trained against those of the case, within a thousandth of what training changed (change, by name),
 * and logits of the model with them in its weights. adapters.c */
void check_factors(options *o, const char *folder, const char *name, const char *spec, const tn_trainer *trainer,
                   tn_model *model, const json_t *change);

/* Logits of a model whose adapter was merged, against those called PREFIXlogits. adapters.c */
void check_merged(options *o, const char *name, tn_model *model, const char *what, const tn_safetensors *file,
                  const char *prefix, double bound);

/* A line for a case, and its count. */
void check_say(options *o, const char *name, const char *what, const char *spec, bool ok, const char *detail);

/* The gradients of a model against differences of its loss. */
void check_differences(options *o, const char *folder, const char *name);

/* Steps of training against those of a golden case; weights: its model; router: its factor of the routers' loss. */
void check_curves(options *o, const char *folder, const char *name, const char *weights, double router);

/* Records of every format against the samples that a golden file has of them. */
void check_formats(options *o, const char *path);

/* A model's parameter in memory, f32; NULL: there is none. differences.c */
const float *check_weight(const tn_model *model, const char *name);

#endif
