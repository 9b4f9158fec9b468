/* Any bytes as a .gguf: its metadata and tensors read, its tokenizer used with its own last bytes, its chat template
 * parsed, all of it opened as a model. */
#include "base/gguf.h"
#include "fuzz.h"
#include "fuzz_folder.h"
#include "fuzz_text.h"

#include <tenon/chat.h>
#include <tenon/model.h>

FUZZ_ENTRY(fuzz_gguf)

#ifdef TN_FUZZER
#include "fuzz_mutate.h"

/* Where one of the strings that stand with their lengths lies: any eight bytes that fit as one. */
static size_t draw_string(const uint8_t *data, size_t size, uint64_t *length)
{
    size_t found = 0;
    uint32_t seen = 0;
    for (size_t at = 24; at + 8 <= size; at++) {
        uint64_t n;
        memcpy(&n, data + at, sizeof n);
        if (n == 0 || n > size - at - 8 || fuzz_random(++seen) != 0)
            continue;
        found = at;
        *length = n;
    }
    return found;
}

/* Mostly changes a string and keeps its length right, or little would get as far as what it says. */
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned int seed)
{
    static uint8_t tail[1 << 16];
    uint64_t length = 0;
    fuzz_state = seed;
    size_t at = fuzz_random(4) == 0 ? 0 : draw_string(data, size, &length);
    size_t rest = at ? size - at - 8 - length : 0;
    if (!at || rest > sizeof tail || max_size <= at + 8 + rest)
        return LLVMFuzzerMutate(data, size, max_size);
    memcpy(tail, data + at + 8 + length, rest);
    length = LLVMFuzzerMutate(data + at + 8, (size_t)length, max_size - at - 8 - rest);
    memcpy(data + at, &length, sizeof length);
    memcpy(data + at + 8 + length, tail, rest);
    return at + 8 + (size_t)length + rest;
}
#endif

static void read_array(const gguf *f, const char *key)
{
    int64_t count = gguf_array(f, key), integer;
    double number;
    size_t length;
    volatile char last = 0;
    for (int64_t i = 0; i < count; i++) {
        const char *text = gguf_array_text(f, key, i, &length);
        fuzz_require(!text + !gguf_array_number(f, key, i, &number) == 1, "an element is of no type, or of two");
        fuzz_require(!gguf_array_integer(f, key, i, &integer) || !text, "a string is an integer");
        if (text && length)
            last = text[length - 1];
    }
    fuzz_require(!gguf_array_text(f, key, count, &length), "there is an element behind the last");
    (void)last;
}

static void read_values(const gguf *f)
{
    const char *key;
    int64_t integer;
    double number;
    bool flag;
    for (size_t i = 0; (key = gguf_key(f, i)); i++) {
        gguf_kind kind = gguf_kind_of(f, key);
        fuzz_require(kind != GGUF_ABSENT, "a key is not found");
        fuzz_require(!gguf_integer(f, key, &integer) || kind == GGUF_INTEGER, "an integer is none");
        fuzz_require(!gguf_number(f, key, &number) || kind == GGUF_INTEGER || kind == GGUF_FLOAT, "a number is none");
        fuzz_require(gguf_flag(f, key, &flag) == (kind == GGUF_BOOL), "a flag is none");
        fuzz_require((gguf_text(f, key) != NULL) == (kind == GGUF_STRING), "a text is none");
        if (kind == GGUF_ARRAY)
            read_array(f, key);
    }
}

/* All of the data can be read, and none belong to two tensors. */
static void read_tensors(const gguf *f)
{
    const unsigned char *end = NULL;
    volatile unsigned char sum = 0;
    for (size_t i = 0; i < gguf_tensor_count(f); i++) {
        tn_tensor t;
        const char *path;
        fuzz_require(gguf_tensor(f, i, &t, &path) && path, "a tensor has no name");
        const unsigned char *data = t.data;
        size_t bytes = (size_t)tn_dtype_bytes(t.dtype, tn_tensor_count(&t));
        fuzz_require(t.ndim >= 0 && t.ndim <= TN_MAX_DIMS && bytes > 0, "a tensor has no shape");
        fuzz_require(!end || data >= end, "two tensors overlap");
        end = data + bytes;
        for (size_t k = 0; k < bytes; k++)
            sum = (unsigned char)(sum + data[k]);
    }
}

static void use_texts(const char *path, const uint8_t *text, size_t length)
{
    tn_error err = TN_ERROR_INIT, why = TN_ERROR_INIT;
    tn_tokenizer *tokenizer = tn_tokenizer_open(path, &err);
    fuzz_agree(tokenizer != NULL, &err);
    if (tokenizer)
        fuzz_use_tokenizer(tokenizer, length ? text : NULL, length);
    tn_tokenizer_free(tokenizer);
    tn_template *chat_template = tn_template_open(path, &why);
    fuzz_agree(chat_template != NULL, &why);
    tn_template_free(chat_template);
}

static void open_model(const char *path)
{
    tn_error err = TN_ERROR_INIT;
    tn_model *model = tn_model_open(path, NULL, &err);
    fuzz_agree(model != NULL, &err);
    tn_model_close(model);
}

int fuzz_gguf(const uint8_t *data, size_t size)
{
    enum { TEXT = 256 };
    char path[PATH_MAX + 32];
    size_t length = size < TEXT ? size : TEXT;
    fuzz_folder_write("model.gguf", data, size);
    snprintf(path, sizeof path, "%s/model.gguf", fuzz_folder());
    tn_error err = TN_ERROR_INIT;
    gguf *f = gguf_open(path, &err);
    fuzz_agree(f != NULL, &err);
    if (f) {
        read_values(f);
        read_tensors(f);
        use_texts(path, data + size - length, length);
        open_model(path);
    }
    gguf_close(f);
    return 0;
}
