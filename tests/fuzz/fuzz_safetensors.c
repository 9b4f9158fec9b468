/* Any bytes as a .safetensors file. What is accepted must hold together, and be JSON in the eyes of another reader. */
#include "fuzz.h"
#include "fuzz_safetensors.h"

#include <jansson.h>
#include <stdbool.h>
#include <string.h>
#include <tenon/tenon.h>

FUZZ_ENTRY(fuzz_safetensors)

#ifdef TN_FUZZER
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned int seed)
{
    return fuzz_mutate_header(data, size, max_size, seed);
}
#endif

static int compare_begin(const void *a, const void *b)
{
    const tn_tensor *x = a, *y = b;
    return x->data < y->data ? -1 : x->data > y->data;
}

static size_t byte_count(const tn_tensor *t)
{
    return (size_t)tn_tensor_count(t) * tn_dtype_size(t->dtype);
}

/* Every byte of the data belongs to exactly one tensor, and can be read. */
static void check_data(const tn_safetensors *file, size_t data_size)
{
    size_t count = tn_safetensors_count(file), total = 0;
    tn_tensor *tensors = calloc(count + 1, sizeof *tensors);
    volatile char sum = 0;
    for (size_t i = 0; i < count; i++) {
        const char *name = tn_safetensors_name(file, i);
        fuzz_require(name && tn_safetensors_get(file, name, &tensors[i]), "a tensor is not found by its name");
        fuzz_require(tensors[i].ndim >= 0 && tensors[i].ndim <= TN_MAX_DIMS, "a tensor has too many dimensions");
        const char *bytes = tensors[i].data;
        for (size_t k = 0; k < byte_count(&tensors[i]); k++)
            sum = (char)(sum + bytes[k]);
        total += byte_count(&tensors[i]);
    }
    fuzz_require(total == data_size, "the tensors are not all of the data");
    qsort(tensors, count, sizeof *tensors, compare_begin);
    for (size_t i = 1; i < count; i++)
        fuzz_require((char *)tensors[i - 1].data + byte_count(&tensors[i - 1]) <= (char *)tensors[i].data ||
                         byte_count(&tensors[i]) == 0,
                     "two tensors overlap");
    free(tensors);
}

/* An independent reader sees the same tensors, unless it meets one of its own limits: numbers beyond int64 or double,
 * and nesting, in members that nobody reads. */
static void check_header(const tn_safetensors *file, const uint8_t *data, size_t length)
{
    json_error_t error;
    json_t *header = json_loadb((const char *)data + 8, length, 0, &error);
    if (!header) {
        enum json_error_code code = json_error_code(&error);
        fuzz_require(code == json_error_numeric_overflow || code == json_error_stack_overflow ||
                         code == json_error_null_character || code == json_error_null_byte_in_key,
                     "what is no JSON was accepted");
        return;
    }
    size_t count = json_object_size(header) - (json_object_get(header, "__metadata__") ? 1 : 0);
    fuzz_require(count == tn_safetensors_count(file), "another reader finds another number of tensors");
    for (size_t i = 0; i < count; i++) {
        tn_tensor t;
        const json_t *value = json_object_get(header, tn_safetensors_name(file, i));
        fuzz_require(value && tn_safetensors_get(file, tn_safetensors_name(file, i), &t), "a name was read wrongly");
        const json_t *shape = json_object_get(value, "shape"), *offsets = json_object_get(value, "data_offsets");
        fuzz_require(json_array_size(shape) == (size_t)t.ndim, "a shape was read wrongly");
        for (int32_t d = 0; d < t.ndim; d++)
            fuzz_require(json_integer_value(json_array_get(shape, (size_t)d)) == t.shape[d], "a size was read wrongly");
        fuzz_require(json_integer_value(json_array_get(offsets, 1)) - json_integer_value(json_array_get(offsets, 0)) ==
                         (json_int_t)byte_count(&t),
                     "the offsets were read wrongly");
    }
    json_decref(header);
}

int fuzz_safetensors(const uint8_t *data, size_t size)
{
    char path[64];
    int fd = fuzz_file(data, size, path);
    tn_error err = TN_ERROR_INIT;
    tn_safetensors *file = tn_safetensors_open(path, &err);
    close(fd);
    fuzz_require((file != NULL) == (err.code == TN_OK), "the result and the error disagree");
    fuzz_require(file || (err.message[0] && !strchr(err.message, '\n')), "the error is not one line");
    if (file) {
        size_t length = fuzz_header_length(data);
        check_data(file, size - 8 - length);
        check_header(file, data, length);
    }
    tn_safetensors_close(file);
    return 0;
}
