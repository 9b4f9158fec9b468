/* Inside core/plugin: JSON that says which kernels, for kernels.json and kernel_config. Errors name path, which is a
 * file or the option "kernels", and the key. */
#ifndef TENON_CORE_KERNELS_JSON_H
#define TENON_CORE_KERNELS_JSON_H

#include "plugin/spec.h"

#include <jansson.h>

/* "a string", "true or false" */
const char *kernels_json_type(const json_t *value);

/* These fail. */
tn_status kernels_json_wrong_type(const char *path, const char *key, const char *want, const json_t *got,
                                  tn_error *err);
tn_status kernels_json_no_memory(const char *path, tn_error *err);

/* inside: the object that has the key; NULL: the whole. The nearest of count names is suggested. */
tn_status kernels_json_unknown_key(const char *key, const char *inside, const char *const *names, size_t count,
                                   const char *path, tn_error *err);

/* An error of a setter names the option; here it is a key of a file. */
tn_status kernels_json_as_key(tn_status status, const tn_error *why, const char *key, const char *path, tn_error *err);

/* Is every element of a list a string that is not empty? */
tn_status kernels_json_strings(const json_t *list, const char *key, const char *path, tn_error *err);

/* The elements, separated by commas, which none of them may contain. Owned. */
tn_status kernels_json_join(const json_t *list, const char *key, const char *path, char **joined, tn_error *err);

/* Is it true or false? In quotes, too, as LLaMA-Factory takes them. */
bool kernels_json_flag(const json_t *value, bool *flag);

/* The root is owned, NULL where that fails. advice ends the error of text that is no JSON. */
tn_status kernels_json_parse(const char *text, size_t size, const char *path, const char *advice, json_t **root,
                             tn_error *err);

/* kernels_config_object.c: LLaMA-Factory's kernel_config. Into a spec that is free to be filled in; the caller frees it
 * where that fails. */
tn_status kernels_config_read_object(const json_t *object, const char *path, kernel_spec *spec, tn_error *err);

#endif
