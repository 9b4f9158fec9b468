/* Grammars against texts that must pass and must fail, and against themselves.
 *   check_grammar DIR [--bench] [--tokenizer FOLDER]: DIR has a file for each grammar, as its README.md describes.
 * Masks are compared with a walk over all tokens in every state along the texts that pass; texts that are drawn by the
 * masks are read by jansson and judged by a validator of this program. --bench: times of compiling and of masks
 * instead. Ends with "N passed, N failed"; status 1 when something failed. */
#include "check_grammar.h"
#include "validate.h"

#include "base/random.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int passed, failed;

static void report(bool ok, const char *file, const char *what, const char *text)
{
    if (!ok || !text[0] || strstr(text, "walks"))
        printf("%s %-24s %-10s %.300s\n", ok ? "ok  " : "FAIL", file, what, text);
    fflush(stdout);
    ok ? passed++ : failed++;
}

/* ---- masks ------------------------------------------------------------------------------------------------------- */

static tn_grammar_state *state_at(const checked *c, const char *text, size_t length)
{
    tn_error err = TN_ERROR_INIT;
    tn_grammar_state *s = tn_grammar_state_new(c->grammar, &err);
    if (!s || tn_grammar_accept_bytes(s, text, length, &err) != TN_OK) {
        fprintf(stderr, "%s: %s\n", c->name, err.message);
        exit(1);
    }
    return s;
}

/* Every token by itself, its bytes one after the other; false: another answer than the mask's. */
static bool same_as_walk(const checked *c, const char *text, size_t length)
{
    tn_grammar_state *s = state_at(c, text, length);
    bool same = tn_grammar_mask(s, c->bits, NULL) == TN_OK, done = tn_grammar_is_done(s);
    for (int64_t id = 0; id < c->tokens->count && same; id++) {
        const token *t = &c->tokens->list[id];
        bool bit = c->bits[id / 64] >> (id % 64) & 1, may = false;
        if (t->is_end) {
            may = done;
        } else if (t->length) {
            may = tn_grammar_accept_bytes(s, t->bytes, t->length, NULL) == TN_OK;
            if (may) {
                tn_grammar_state_free(s);
                s = state_at(c, text, length);
            }
        }
        if (bit != may)
            printf("     token %lld '%.*s' behind '%.*s': the mask says %d\n", (long long)id, (int)t->length, t->bytes,
                   (int)length, text, bit);
        same = bit == may;
    }
    tn_grammar_state_free(s);
    return same;
}

/* ---- texts ---------------------------------------------------------------------------------------------------------
 */

static bool passes(const checked *c, const char *text)
{
    tn_grammar_state *s = tn_grammar_state_new(c->grammar, NULL);
    bool good = tn_grammar_accept_bytes(s, text, strlen(text), NULL) == TN_OK && tn_grammar_is_done(s);
    tn_grammar_state_free(s);
    return good;
}

/* The text as its tokenizer cuts it: each token is in the mask, and then the end is. */
static bool passes_as_tokens(const checked *c, const char *text)
{
    int64_t *ids = NULL;
    size_t count = 0;
    tn_error err = TN_ERROR_INIT;
    tn_grammar_state *s = tn_grammar_state_new(c->grammar, &err);
    bool good = tn_tokenizer_encode(c->tokens->tokenizer, text, strlen(text), false, &ids, &count, &err) == TN_OK;
    for (size_t i = 0; i <= count && good; i++) {
        int64_t id = i < count ? ids[i] : c->tokens->end;
        good = tn_grammar_mask(s, c->bits, &err) == TN_OK && (c->bits[id / 64] >> (id % 64) & 1) &&
               tn_grammar_accept(s, id, &err) == TN_OK;
    }
    good = good && tn_grammar_is_done(s) && tn_grammar_accept(s, c->tokens->end, NULL) == TN_E_INPUT;
    tn_grammar_state_free(s);
    free(ids);
    return good;
}

static void check_texts(const checked *c)
{
    size_t i;
    json_t *text;
    json_array_foreach (json_object_get(c->file, "pass"), i, text) {
        const char *t = json_string_value(text);
        bool good = passes(c, t);
        report(good, c->name, "passes", t);
        if (!good)
            continue;
        report(passes_as_tokens(c, t), c->name, "tokens", t);
        bool same = true;
        for (size_t n = 0; n <= strlen(t) && same; n++)
            same = same_as_walk(c, t, n);
        report(same, c->name, "masks", t);
        if (c->schema) {
            json_t *value = json_loads(t, JSON_DECODE_ANY, NULL);
            report(value && validate(c->schema, c->schema, value), c->name, "validator", t);
            json_decref(value);
        }
    }
    json_array_foreach (json_object_get(c->file, "fail"), i, text)
        report(!passes(c, json_string_value(text)), c->name, "fails", json_string_value(text));
}

/* ---- texts by the masks
 * ---------------------------------------------------------------------------------------------- */

enum { WALKS = 40, MOST_TOKENS = 120, MOST_TEXT = 1 << 16 };

/* One of the allowed tokens, the end or a closing one more often the longer it takes. */
static int64_t draw(const checked *c, random_state *r, int step)
{
    int64_t best = -1;
    uint64_t least = UINT64_MAX;
    bool hurry = (int)(random_bits(r) % 200) < 40 + 2 * step;
    for (int64_t id = 0; id < c->tokens->count; id++) {
        if (!(c->bits[id / 64] >> (id % 64) & 1))
            continue;
        const token *t = &c->tokens->list[id];
        bool closes = t->is_end || (t->length == 1 && strchr("\"]}n", t->bytes[0]));
        uint64_t weight = random_bits(r) >> (hurry && closes ? 32 : 1);
        if (best < 0 || weight < least) {
            best = id;
            least = weight;
        }
    }
    return best;
}

/* Every other text begins as one that passes does. */
static size_t begin(const checked *c, random_state *r, char *text)
{
    const json_t *pass = json_object_get(c->file, "pass");
    const char *known = json_string_value(json_array_get(pass, random_bits(r) % json_array_size(pass)));
    size_t length = random_bits(r) % 2 ? random_bits(r) % (strlen(known) + 1) : 0;
    memcpy(text, known, length);
    return length;
}

/* A text by the masks; false: it has no end yet. */
static bool walk(const checked *c, uint64_t seed, char *text, size_t *length, bool *good)
{
    random_state r = {seed};
    tn_grammar_state *s = tn_grammar_state_new(c->grammar, NULL);
    *length = begin(c, &r, text);
    *good = tn_grammar_accept_bytes(s, text, *length, NULL) == TN_OK;
    bool ended = false;
    for (int step = 0; step < MOST_TOKENS && *good && !ended; step++) {
        *good = tn_grammar_mask(s, c->bits, NULL) == TN_OK;
        int64_t id = *good ? draw(c, &r, step) : -1;
        *good = id >= 0 && tn_grammar_accept(s, id, NULL) == TN_OK;
        if (!*good)
            break;
        const token *t = &c->tokens->list[id];
        ended = t->is_end;
        memcpy(text + *length, t->bytes ? t->bytes : "", t->length);
        *length += t->length;
    }
    text[*length] = '\0';
    tn_grammar_state_free(s);
    return ended;
}

static bool is_right(const checked *c, const char *text, size_t length)
{
    json_t *value = c->json ? json_loadb(text, length, JSON_DECODE_ANY, NULL) : NULL;
    bool good = !c->json || (value && (!c->schema || validate(c->schema, c->schema, value)));
    json_decref(value);
    return good && (!c->regex || validate_pattern(c->regex, text, true)) && passes(c, text);
}

static void check_walks(const checked *c)
{
    static char text[MOST_TEXT];
    char line[100];
    int ended = 0;
    for (uint64_t seed = 0; seed < WALKS; seed++) {
        size_t length;
        bool good, end = walk(c, seed, text, &length, &good);
        if (!good || (end && !is_right(c, text, length))) {
            report(false, c->name, good ? "walk" : "stuck", text);
            return;
        }
        ended += end;
    }
    snprintf(line, sizeof line, "%d walks, %d ended", WALKS, ended);
    report(ended > 0, c->name, "drawn", line);
}

/* ---- what must be refused
 * ---------------------------------------------------------------------------------------------- */

static void check_refused(const checked *c)
{
    size_t i;
    json_t *one;
    json_array_foreach (json_object_get(c->file, "refused"), i, one) {
        tn_error err = TN_ERROR_INIT;
        char *schema = json_dumps(json_object_get(one, "schema"), JSON_ENCODE_ANY), begin[300];
        const char *at = json_string_value(json_object_get(one, "at"));
        const char *says = json_string_value(json_object_get(one, "says"));
        tn_grammar *g = tn_grammar_new(c->tokens->vocabulary, (tn_grammar_part[]){TN_GRAMMAR_SCHEMA},
                                       (const char *[]){schema}, 1, &err);
        snprintf(begin, sizeof begin, "%s: ", at);
        bool good = !g && err.code == TN_E_INPUT && strcmp(err.where, "schema") == 0 &&
                    strncmp(err.message, begin, strlen(begin)) == 0 && (!says || strstr(err.message, says));
        report(good, c->name, "refused", schema);
        if (!good)
            printf("     expected at %s '%s': %s\n", at, says ? says : "", g ? "accepted" : err.message);
        tn_grammar_free(g);
        free(schema);
    }
}

/* ---- the program
 * --------------------------------------------------------------------------------------------------------- */

static void check_file(const char *folder, const char *name, const tokens *tokens, bool bench)
{
    checked c;
    if (!checked_open(&c, folder, name, tokens)) {
        report(false, name, "reads", c.problem);
    } else if (json_object_get(c.file, "refused")) {
        if (!bench)
            check_refused(&c);
    } else if (bench) {
        bench_grammar(&c);
    } else {
        check_texts(&c);
        check_walks(&c);
    }
    checked_close(&c);
}

static int is_json(const struct dirent *entry)
{
    const char *dot = strrchr(entry->d_name, '.');
    return dot && strcmp(dot, ".json") == 0;
}

int main(int argc, char **argv)
{
    const char *folder = argc > 1 ? argv[1] : "tests/data/schemas", *tokenizer = "tests/data/tokenizers/qwen2";
    bool bench = false;
    for (int i = 2; i < argc; i++) {
        if (strcmp(argv[i], "--bench") == 0)
            bench = true;
        else if (strcmp(argv[i], "--tokenizer") == 0 && i + 1 < argc)
            tokenizer = argv[++i];
    }
    tokens t;
    tn_error err = TN_ERROR_INIT;
    struct dirent **names = NULL;
    int count = scandir(folder, &names, is_json, alphasort);
    if (count < 0 || !tokens_open(&t, tokenizer, &err)) {
        fprintf(stderr, "%s: %s\n", folder, count < 0 ? "cannot be read" : err.message);
        return 1;
    }
    for (int i = 0; i < count; i++) {
        check_file(folder, names[i]->d_name, &t, bench);
        free(names[i]);
    }
    free(names);
    if (bench)
        bench_end();
    tokens_close(&t);
    if (!bench)
        printf("%d passed, %d failed\n", passed, failed);
    return failed > 0;
}
