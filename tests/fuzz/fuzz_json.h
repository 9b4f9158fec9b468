/* Mutation of JSON as a tree, for targets whose inputs are JSON and, behind a NUL, something else. Bytes changed at
 * random rarely leave JSON, and readers would see little but syntax errors. */
#ifndef TEST_FUZZ_JSON_H
#define TEST_FUZZ_JSON_H

#include "fuzz.h"

#ifdef TN_FUZZER
#include "fuzz_mutate.h"

#include <jansson.h>

/* A value that readers may not have thought of, or a copy of one from elsewhere in the tree. */
static json_t *fuzz_value(json_t *other)
{
    static const json_int_t numbers[] = {0,  1,    2,     3,       4,         8,         64,
                                         -1, 1000, 65536, 1 << 20, INT32_MAX, INT64_MAX, INT64_MIN};
    static const double reals[] = {0.5, -0.0, 1e-300, 1e300, 1e-6, 10000.0, -1.5};
    char text[16];
    switch (fuzz_random(9)) {
    case 0:
        return json_integer(numbers[fuzz_random(sizeof numbers / sizeof numbers[0])]);
    case 1:
        return json_real(reals[fuzz_random(sizeof reals / sizeof reals[0])]);
    case 2:
        return json_boolean(fuzz_random(2));
    case 3:
        return json_null();
    case 4:
        snprintf(text, sizeof text, "%c", 'a' + (int)fuzz_random(26));
        return json_string(fuzz_random(2) ? text : "");
    case 5:
        return fuzz_random(2) ? json_array() : json_object();
    case 6:
        return json_is_integer(other) ? json_integer((json_int_t)((uint64_t)json_integer_value(other) * 2 + 1))
                                      : json_deep_copy(other);
    default:
        return json_deep_copy(other);
    }
}

/* A value of the tree, by a walk that ends anywhere. */
static json_t *fuzz_pick(json_t *node)
{
    while (json_object_size(node) + json_array_size(node) > 0 && fuzz_random(6) > 0) {
        uint32_t at = fuzz_random((uint32_t)(json_object_size(node) + json_array_size(node)));
        void *member = json_object_iter(node);
        for (uint32_t i = 0; json_is_object(node) && i < at; i++)
            member = json_object_iter_next(node, member);
        node = json_is_object(node) ? json_object_iter_value(member) : json_array_get(node, at);
    }
    return node;
}

/* A list's element, or an object's member: replaced, removed or doubled. */
static void fuzz_change(json_t *root)
{
    json_t *node = fuzz_pick(root);
    for (int i = 0; i < 20 && json_object_size(node) + json_array_size(node) == 0; i++)
        node = fuzz_pick(root);
    size_t count = json_object_size(node) + json_array_size(node);
    if (count == 0)
        return;
    uint32_t at = fuzz_random((uint32_t)count), how = fuzz_random(8);
    if (json_is_array(node)) {
        if (how == 0)
            json_array_remove(node, at);
        else if (how == 1)
            json_array_insert_new(node, at, fuzz_value(json_array_get(node, at)));
        else
            json_array_set_new(node, at, fuzz_value(fuzz_random(2) ? json_array_get(node, at) : fuzz_pick(root)));
        return;
    }
    void *member = json_object_iter(node);
    for (uint32_t i = 0; i < at; i++)
        member = json_object_iter_next(node, member);
    json_t *value = json_object_iter_value(member);
    if (how == 0)
        json_object_del(node, json_object_iter_key(member));
    else
        json_object_set_new(node, json_object_iter_key(member), fuzz_value(fuzz_random(2) ? value : fuzz_pick(root)));
}

/* The first part changed as a tree, or in one case of four, and where it is none, all of it as bytes. */
static size_t fuzz_mutate_json(uint8_t *data, size_t size, size_t max_size, unsigned seed)
{
    const uint8_t *rest;
    size_t rest_size, first = fuzz_parts(data, size, &rest, &rest_size), behind = size - first;
    fuzz_state = seed;
    json_t *root = fuzz_random(4) ? json_loadb((const char *)data, first, 0, NULL) : NULL;
    if (!root)
        return LLVMFuzzerMutate(data, size, max_size);
    for (uint32_t i = 0, changes = 1 + fuzz_random(3); i < changes; i++)
        fuzz_change(root);
    char *text = json_dumps(root, JSON_COMPACT);
    json_decref(root);
    size_t length = text ? strlen(text) : 0;
    if (length == 0 || length + behind > max_size) {
        free(text);
        return LLVMFuzzerMutate(data, size, max_size);
    }
    memmove(data + length, data + first, behind);
    memcpy(data, text, length);
    free(text);
    return length + behind;
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned int seed)
{
    return fuzz_mutate_json(data, size, max_size, seed);
}
#endif
#endif
