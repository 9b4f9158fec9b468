/* Inside core/text: the regular expressions that well-known tokenizers cut words with, as plain code. */
#ifndef TENON_CORE_TEXT_SCANNER_H
#define TENON_CORE_TEXT_SCANNER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Those of GPT-2, of Qwen2, of Llama 3, and of Qwen3.5. */
#define SCANNER_GPT2 "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+" SCANNER_SPACE
#define SCANNER_QWEN2 SCANNER_ENGLISH SCANNER_WORD "|\\p{N}" SCANNER_SIGNS SCANNER_LINES
#define SCANNER_LLAMA3 SCANNER_ENGLISH SCANNER_WORD "|\\p{N}{1,3}" SCANNER_SIGNS SCANNER_LINES
#define SCANNER_QWEN35                                                                                                 \
    SCANNER_ENGLISH "[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*" SCANNER_LINES

/* What they are made of. */
#define SCANNER_ENGLISH "(?i:'s|'t|'re|'ve|'m|'ll|'d)|"
#define SCANNER_WORD "[^\\r\\n\\p{L}\\p{N}]?\\p{L}+"
#define SCANNER_SIGNS "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*"
#define SCANNER_SPACE "|\\s+(?!\\S)|\\s+"
#define SCANNER_LINES "|\\s*[\\r\\n]+" SCANNER_SPACE

typedef struct scanner scanner;

/* What a scanner does: these expressions differ only in a few places. */
typedef struct scanner_rule {
    const char *pattern; /* its text in the file                                                      */
    bool any_case;       /* of 's, 't, 're, 've, 'm, 'll and 'd                                       */
    bool any_prefix;     /* a word may begin with any character but line ends and numbers, not just a space */
    bool marks;          /* combining marks belong to words                                          */
    bool spaced_numbers; /* a space may stand in front of a number                                   */
    bool lines;          /* line ends go with the signs before them, or with the spaces before them   */
    size_t most_digits;  /* in one piece                                                             */
} scanner_rule;

/* NULL: the expression is none of the known ones. */
const scanner_rule *scanner_find(const char *pattern, size_t length);
extern const scanner_rule scanner_rules[];
extern const size_t scanner_count;

/* Owned; NULL without memory. The classes of characters are asked of PCRE2, so that both agree in every version. */
scanner *scanner_new(const scanner_rule *rule);
void scanner_free(scanner *s);

/* The end of the match at start, which is less than length: there is always one, and the next begins there. text is
 * valid UTF-8. */
size_t scanner_next(const scanner *s, const char *text, size_t length, size_t start);

#endif
