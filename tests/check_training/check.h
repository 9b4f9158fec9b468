/* What the parts of check_training share. */
#ifndef CHECK_TRAINING_H
#define CHECK_TRAINING_H

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

/* A line for a case, and its count. */
void check_say(options *o, const char *name, const char *what, const char *spec, bool ok, const char *detail);

/* The gradients of a model against differences of its loss. */
void check_differences(options *o, const char *folder, const char *name);

/* Steps of training against those of a golden case; weights: its model. */
void check_curves(options *o, const char *folder, const char *name, const char *weights);

/* Records of every format against the samples that a golden file has of them. */
void check_formats(options *o, const char *path);

/* A model's parameter in memory, f32; NULL: there is none. differences.c */
const float *check_weight(const tn_model *model, const char *name);

#endif
