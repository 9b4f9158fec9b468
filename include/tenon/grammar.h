/* Tenon: text that must have a form: what a JSON schema allows, a regular expression, one of some texts. A grammar says
 * at each place which tokens may come next. docs/grammar.md has what schemas may say. tenon.h has the rules. */
#ifndef TENON_GRAMMAR_H
#define TENON_GRAMMAR_H

#include <tenon/text.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The tokens of a vocabulary as bytes, in a tree. */
typedef struct tn_vocabulary tn_vocabulary;

/* Made once for a tokenizer, which need not stay open. size: numbers of a row of logits (tn_model_info.vocab); 0: as
 * many as the tokenizer has ids. ends: ids of which one ends a text, within size; special tokens are never allowed
 * otherwise. It does not change afterwards, and outlives grammars made with it. TN_E_INPUT: tokens that have no bytes
 * of their own (of a decoder for speech). Owned: tn_vocabulary_free. [any thread] */
TN_API tn_vocabulary *tn_vocabulary_new(const tn_tokenizer *tokenizer, int64_t size, const int64_t *ends,
                                        size_t end_count, tn_error *err);
TN_API void tn_vocabulary_free(tn_vocabulary *vocabulary); /* [one thread] */

/* Words of 64 bits of a mask, which has a bit for each of `size` ids. [any thread] */
TN_API size_t tn_vocabulary_words(const tn_vocabulary *vocabulary);

/* Parts of a grammar, which follow one another. */
typedef enum tn_grammar_part {
    TN_GRAMMAR_LITERAL, /* these bytes                                                              */
    TN_GRAMMAR_SCHEMA,  /* a JSON text that this JSON schema allows                                 */
    TN_GRAMMAR_OBJECT,  /* any JSON object; its text is not looked at and may be NULL               */
    TN_GRAMMAR_REGEX,   /* what this regular expression matches as a whole                          */
    TN_GRAMMAR_OR       /* what follows may stand in the place of what came before; text as for OBJECT */
} tn_grammar_part;

/* What it may take: states of its automaton, and bytes of all its texts. More is TN_E_INPUT, and so is what takes
 * longer to make than a second or so. */
#define TN_GRAMMAR_STATES (1 << 18)
#define TN_GRAMMAR_BYTES ((size_t)4 << 20)

typedef struct tn_grammar tn_grammar;

/* count parts and their texts, at least one. So a schema is { SCHEMA }, a choice { LITERAL, OR, LITERAL }, and a call
 * of one of two tools { LITERAL, SCHEMA, LITERAL, OR, LITERAL, SCHEMA, LITERAL }. TN_E_INPUT with where "schema" or
 * "pattern": what cannot be; of a schema the message begins with the JSON pointer of the place, as a fragment
 * ("#/items: ..."). It does not change afterwards; what it finds out about masks is kept with it, some 24 MiB, and
 * twice that while a mask is made. Owned: tn_grammar_free. [any thread] */
TN_API tn_grammar *tn_grammar_new(const tn_vocabulary *vocabulary, const tn_grammar_part *parts,
                                  const char *const *texts, size_t count, tn_error *err);
TN_API void tn_grammar_free(tn_grammar *grammar); /* when its states are gone. [one thread] */

/* Where a text is: at its beginning. Owned: tn_grammar_state_free, before the grammar. [any thread] */
typedef struct tn_grammar_state tn_grammar_state;
TN_API tn_grammar_state *tn_grammar_state_new(tn_grammar *grammar, tn_error *err);
TN_API void tn_grammar_state_free(tn_grammar_state *state); /* [one thread] */

/* The token, or the bytes, come next. TN_E_INPUT: they may not, and nothing has changed. Behind the token of an end
 * nothing comes. [one thread] */
TN_API tn_status tn_grammar_accept(tn_grammar_state *state, int64_t id, tn_error *err);
TN_API tn_status tn_grammar_accept_bytes(tn_grammar_state *state, const char *bytes, size_t length, tn_error *err);

/* Writes bits[tn_vocabulary_words]: bit id % 64 of bits[id / 64] says whether a token may come next; those of ends say
 * whether the text may end here. TN_E_INPUT: the text is not whole, and no token of the vocabulary goes on with it.
 * [one thread] */
TN_API tn_status tn_grammar_mask(tn_grammar_state *state, uint64_t *bits, tn_error *err);

/* The same as logits: those of tokens that may not come become -inf. For tn_generate_options.on_logits, with
 * tn_grammar_accept in on_token; count is the vocabulary's size, others TN_E_USAGE. [one thread] */
TN_API tn_status tn_grammar_constrain(tn_grammar_state *state, float *logits, int64_t count, tn_error *err);

/* Is the text whole as it stands? [one thread] */
TN_API bool tn_grammar_is_done(const tn_grammar_state *state);

#ifdef __cplusplus
}
#endif
#endif
