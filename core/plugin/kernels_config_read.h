/* Inside core/plugin: a configuration, for the reader of kernels.json. */
#ifndef TENON_CORE_KERNELS_CONFIG_READ_H
#define TENON_CORE_KERNELS_CONFIG_READ_H

#include "base/lockfile.h"
#include "plugin/kernels_config.h"
#include "plugin/spec.h"

/* Two strings: an option (id, patterns) or a pin (file name, digest). */
typedef struct config_pair {
    char *key, *value;
} config_pair;

struct tn_config {
    char *file;             /* NULL: none was read                                                            */
    char *kernels, *device; /* kernels: spec in one way of writing it                             */
    kernel_spec spec;
    config_verify verify;
    int64_t max_packed_mb; /* -1: no bound                                                        */
    enum { CONFIG_MEASURE_UNSAID, CONFIG_MEASURE, CONFIG_MEASURE_NOT } measure;
    bool same_bits, exact;
    text_list folders, disable;
    bool folders_said;       /* somebody named folders, be it an empty list                      */
    const char *kernels_key; /* of the file, which said which kernels; NULL: it did not              */
    config_pair *options, *pins;
    size_t option_count, pin_count;
    lockfile *lock; /* which plugins may be loaded; NULL: none was given                             */
};

/* Copies of text go in. false: out of memory. */
bool kernels_config_pair_add(config_pair **pairs, size_t *count, const char *key, const char *value);

/* A folder as written, made absolute from base, without links where it exists. Owned; NULL: out of memory. */
char *kernels_config_absolute(const char *base, const char *folder);

/* spec is taken; key: kernels_key. */
tn_status kernels_config_set_spec(tn_config *config, kernel_spec *spec, const char *key, tn_error *err);

#endif
