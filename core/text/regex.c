/* Regular expressions of tokenizer.json, run by PCRE2 when oniguruma.c has translated them. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "text/regex.h"

#include "text/buffer.h"
#include "text/doc.h"
#include "text/oniguruma.h"
#include "text/scanner.h"
#include "text/utf8.h"

#include <pcre2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct regex {
    pcre2_code *code;
    scanner *known; /* does the same, faster; NULL for most                                       */
    char *file, *component;
};

/* What all searches of one expression in one text may take before it counts as hostile: about a second, and a hundred
 * steps for each byte, of which published expressions need up to four. A step is a part of the expression that is tried
 * and each byte that the matcher moves by, to and fro: before each part it calls count_step. */
#define REGEX_STEPS UINT64_C(100000000)
#define REGEX_STEPS_PER_BYTE 100u

/* PCRE2's own limits count in another way, for each place where a match may begin. */
#define REGEX_MATCH_LIMIT 20000000u
#define REGEX_HEAP_KIB 262144u

static pcre2_code *compile(const char *pattern, size_t length, bool literal, doc_reader *r)
{
    pcre2_compile_context *context = pcre2_compile_context_create(NULL);
    if (!context) {
        doc_no_memory(r);
        return NULL;
    }
    pcre2_set_newline(context, PCRE2_NEWLINE_LF);
    /* In Ruby ^ and $ always match at lines; a text that is valid UTF-8 need not be checked for it again. */
    uint32_t options = PCRE2_UTF | PCRE2_NO_UTF_CHECK;
    options |= literal ? PCRE2_LITERAL : PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C | PCRE2_AUTO_CALLOUT;
    int code = 0;
    PCRE2_SIZE offset = 0;
    pcre2_code *compiled = pcre2_compile((PCRE2_SPTR)pattern, length, options, &code, &offset, context);
    pcre2_compile_context_free(context);
    if (!compiled && code == PCRE2_ERROR_HEAP_FAILED) {
        doc_no_memory(r);
        return NULL;
    }
    if (!compiled) {
        PCRE2_UCHAR message[160];
        pcre2_get_error_message(code, message, sizeof message);
        doc_fail(r, "regular expression '%.*s' is not usable: %s; correct the file", (int)(length < 120 ? length : 120),
                 pattern, (const char *)message);
        return NULL;
    }
    pcre2_jit_compile(compiled, PCRE2_JIT_COMPLETE); /* without it the matcher interprets: slower, not wrong */
    return compiled;
}

regex *regex_new(const char *pattern, size_t length, bool literal, doc_reader *r)
{
    buffer translated = {0};
    const char *refused = NULL;
    if (r->status != TN_OK)
        return NULL;
    bool memory = literal || oniguruma_translate(pattern, length, &translated, &refused);
    if (refused) {
        buffer_free(&translated);
        doc_fail(r, "the regular expression holds %s, which is not supported; rewrite it", refused);
        return NULL;
    }
    regex *re = calloc(1, sizeof *re);
    if (re && memory) {
        re->file = strdup(r->at.file);
        re->component = strdup(r->at.component);
    }
    if (!re || !re->file || !re->component) {
        doc_no_memory(r);
    } else {
        re->code = literal ? compile(pattern, length, true, r)
                           : compile(translated.data ? translated.data : "", translated.size, false, r);
    }
    const scanner_rule *rule = literal ? NULL : scanner_find(pattern, length);
    if (re && re->code && rule && !(re->known = scanner_new(rule))) {
        doc_no_memory(r);
        pcre2_code_free(re->code);
        re->code = NULL;
    }
    buffer_free(&translated);
    if (re && !re->code) {
        regex_free(re);
        re = NULL;
    }
    return re;
}

bool regex_is_known(const regex *re)
{
    return re->known != NULL;
}

void regex_free(regex *re)
{
    if (!re)
        return;
    pcre2_code_free(re->code);
    scanner_free(re->known);
    free(re->file);
    free(re->component);
    free(re);
}

regex *regex_load(const doc_node *pattern, doc_reader *r)
{
    size_t length = 0;
    const char *text = doc_text(pattern, &length);
    bool literal = true;
    if (!text && (text = doc_text(doc_get(pattern, "String"), &length)) == NULL) {
        text = doc_text(doc_get(pattern, "Regex"), &length);
        literal = false;
    }
    if (!text) {
        doc_fail(r, "'pattern' holds neither 'String' nor 'Regex'; correct the file");
        return NULL;
    }
    return regex_new(text, length, literal, r);
}

static int count_step(pcre2_callout_block *block, void *data)
{
    regex_walk *walk = data;
    size_t now = block->current_position;
    walk->steps += 1 + (now > walk->seen ? now - walk->seen : walk->seen - now);
    walk->seen = now;
    return walk->steps > walk->most_steps ? PCRE2_ERROR_CALLOUT : 0;
}

tn_status regex_open(regex_walk *walk, const regex *re, tn_error *err)
{
    pcre2_match_context *limits = pcre2_match_context_create(NULL);
    *walk = (regex_walk){.re = re, .limits = limits, .most_steps = REGEX_STEPS};
    walk->data = pcre2_match_data_create(1, NULL);
    if (!limits || !walk->data) {
        regex_close(walk);
        return tn_fail(err, TN_E_MEMORY, re->file, "out of memory");
    }
    pcre2_set_match_limit(limits, REGEX_MATCH_LIMIT);
    pcre2_set_heap_limit(limits, REGEX_HEAP_KIB);
    pcre2_set_callout(limits, count_step, walk);
    return TN_OK;
}

void regex_start(regex_walk *walk, const char *text, size_t length)
{
    walk->text = length ? text : "";
    walk->length = length;
    walk->position = walk->last_end = walk->seen = 0;
    walk->matched = false;
    walk->most_steps += REGEX_STEPS_PER_BYTE * (uint64_t)length;
}

static tn_status gave_up(const regex_walk *walk, int rc, tn_error *err)
{
    const regex *re = walk->re;
    if (rc == PCRE2_ERROR_CALLOUT)
        return tn_fail(
            err, TN_E_INPUT, re->file,
            "%s: a regular expression takes more than %llu steps on this text; shorten the text, or mend the "
            "expression",
            re->component, (unsigned long long)walk->most_steps);
    PCRE2_UCHAR message[160];
    pcre2_get_error_message(rc, message, sizeof message);
    return tn_fail(err, rc == PCRE2_ERROR_NOMEMORY ? TN_E_MEMORY : TN_E_INPUT, re->file,
                   "%s: a regular expression gave up on this text: %s; shorten the text", re->component,
                   (const char *)message);
}

/* pcre2_match from the walk's position. */
static int search(regex_walk *walk)
{
    PCRE2_SPTR text = (PCRE2_SPTR)walk->text;
    walk->seen = walk->position;
    int rc =
        pcre2_match(walk->re->code, text, walk->length, walk->position, PCRE2_NO_UTF_CHECK, walk->data, walk->limits);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT)
        rc = pcre2_match(walk->re->code, text, walk->length, walk->position, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT,
                         walk->data, walk->limits);
    return rc;
}

tn_status regex_next(regex_walk *walk, bool *found, size_t *start, size_t *end, tn_error *err)
{
    *found = false;
    if (walk->re->known) {
        *found = walk->position < walk->length;
        *start = *end = walk->position;
        if (*found)
            walk->position = *end = scanner_next(walk->re->known, walk->text, walk->length, *start);
        return TN_OK;
    }
    while (walk->position <= walk->length) {
        int rc = search(walk);
        if (rc == PCRE2_ERROR_NOMATCH)
            break;
        if (rc < 0)
            return gave_up(walk, rc, err);
        const PCRE2_SIZE *at = pcre2_get_ovector_pointer(walk->data);
        size_t from = at[0] < at[1] ? at[0] : at[1]; /* \K may put the start behind the end */
        /* An empty match right behind the last one would be found for ever: step over a character. */
        if (from == at[1] && walk->matched && walk->last_end == at[1]) {
            walk->position += walk->position < walk->length
                                  ? utf8_read(walk->text + walk->position, walk->length - walk->position).length
                                  : 1;
            continue;
        }
        walk->position = walk->last_end = at[1];
        walk->matched = true;
        *start = from;
        *end = at[1];
        *found = true;
        return TN_OK;
    }
    return TN_OK;
}

void regex_close(regex_walk *walk)
{
    pcre2_match_data_free(walk->data);
    pcre2_match_context_free(walk->limits);
    walk->data = walk->limits = NULL;
}

tn_status regex_replace(const regex *re, const char *text, size_t length, const buffer *content, buffer *out,
                        tn_error *err)
{
    regex_walk walk;
    if (length == 0) /* the library looks for nothing there, not even for an empty match */
        return TN_OK;
    tn_status status = regex_open(&walk, re, err);
    if (status != TN_OK)
        return status;
    regex_start(&walk, text, length);
    size_t done = 0, start, end;
    bool found = true, memory = true;
    while (found && memory && (status = regex_next(&walk, &found, &start, &end, err)) == TN_OK) {
        if (!found)
            start = end = length;
        memory =
            buffer_add(out, text + done, start - done) && (!found || buffer_add(out, content->data, content->size));
        done = end;
    }
    regex_close(&walk);
    return memory ? status : buffer_failed(out, (place){re->file, re->component}, err);
}
