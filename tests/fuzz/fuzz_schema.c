/* Any bytes as a JSON schema and, behind a NUL, a text: what is accepted can be walked by its masks. */
#include "fuzz.h"
#include "fuzz_json.h"

#include <tenon/tenon.h>

FUZZ_ENTRY(fuzz_schema)

static tn_vocabulary *vocabulary;
static int64_t count;

/* Once for the process, which keeps it. */
static void open_vocabulary(void)
{
    if (vocabulary)
        return;
    tn_error err = TN_ERROR_INIT;
    tn_tokenizer *t = tn_tokenizer_open("tests/data/tokenizers/gpt-2", &err);
    count = tn_tokenizer_size(t) + 1;
    const int64_t end = count - 1;
    vocabulary = t ? tn_vocabulary_new(t, count, &end, 1, &err) : NULL;
    tn_tokenizer_free(t);
    fuzz_require(vocabulary != NULL, err.message);
}

/* Some tokens by the masks: where there is one, it is accepted. */
static void walk(tn_grammar *g)
{
    enum { STEPS = 24 };
    tn_error err = TN_ERROR_INIT;
    tn_grammar_state *s = tn_grammar_state_new(g, &err);
    uint64_t *bits = malloc(tn_vocabulary_words(vocabulary) * sizeof *bits);
    fuzz_agree(s != NULL, &err);
    for (int64_t step = 0; step < STEPS; step++) {
        if (tn_grammar_mask(s, bits, &err) != TN_OK)
            break; /* a vocabulary may lack bytes that a text needs */
        int64_t id = (step * 7919) % count, seen = 0;
        while (!(bits[id / 64] >> (id % 64) & 1) && seen++ < count)
            id = (id + 1) % count;
        fuzz_require(seen <= count, "a mask is empty");
        fuzz_require(tn_grammar_accept(s, id, &err) == TN_OK, "what the mask allows is refused");
        if (id == count - 1)
            break;
    }
    tn_grammar_state_free(s);
    free(bits);
}

static void try_part(tn_grammar_part part, const char *text, const char *rest, size_t rest_size)
{
    tn_error err = TN_ERROR_INIT;
    tn_grammar *g = tn_grammar_new(vocabulary, &part, &text, 1, &err);
    fuzz_agree(g != NULL, &err);
    if (!g)
        return;
    walk(g);
    tn_grammar_state *s = tn_grammar_state_new(g, &err);
    fuzz_agree(s != NULL, &err);
    tn_status status = tn_grammar_accept_bytes(s, rest ? rest : "", rest_size, &err);
    fuzz_agree(status == TN_OK, &err);
    tn_grammar_state_free(s);
    tn_grammar_free(g);
}

int fuzz_schema(const uint8_t *data, size_t size)
{
    const uint8_t *rest;
    size_t rest_size, first = fuzz_parts(data, size, &rest, &rest_size);
    char *text = malloc(first + 1);
    if (!text)
        abort();
    memcpy(text, size ? (const char *)data : "", first);
    text[first] = '\0';
    open_vocabulary();
    try_part(TN_GRAMMAR_SCHEMA, text, (const char *)rest, rest_size);
    try_part(TN_GRAMMAR_REGEX, text, (const char *)rest, rest_size);
    free(text);
    return 0;
}
