/* The names that .gguf files have for ways to cut text, with the expressions of the tokenizer.json that was meant. */
#include "text/gguf_splits.h"

#include "text/scanner.h"

#include <stddef.h>
#include <string.h>

#define CASES "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
#define UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define BEFORE "[^\\r\\n\\p{L}\\p{N}]?"
#define AFTER "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*" SCANNER_LINES

/* Words of one kind of capitals; ending: what may stand behind them. */
#define CAPITALS(ending) BEFORE UPPER "*" LOWER "+" ending "|" BEFORE UPPER "+" LOWER "*" ending

#define CHINESE "[一-龥ࠀ-一가-퟿]+"
#define LETTERS                                                                                                                                                                                               \
    "\\s?[A-Za-z"                                                                                                                                                                                             \
    "µÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-"                                                                                             \
    "ᲺᲽ-"                                                                                                                                                                                                 \
    "Ჿᴀ-"                                                                                                                                                                                                 \
    "ᴫᵫ-"                                                                                                                                                                                                 \
    "ᵷᵹ-"                                                                                                                                                                                                 \
    "ᶚḀ-"                                                                                                                                                                                                 \
    "ἕἘ-"                                                                                                                                                                                                 \
    "Ἕἠ-"                                                                                                                                                                                                 \
    "ὅὈ-"                                                                                                                                                                                                 \
    "Ὅ"                                                                                                                                                                                                     \
    "ὐ-ὗὙὛὝὟ-ώᾀ-ᾴᾶ-ᾼιῂ-ῄῆ-ῌῐ-ΐῖ-Ίῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤΩℨK-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-" \
    "ꚛꜢ-"                                                                                                                                                                                                 \
    "ꝯ"                                                                                                                                                                                                     \
    "ꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃"                                                                                        \
    "]+"

static const gguf_splits known[] = {
    {.names = " gpt-2 phi-2 exaone4 gigachat a.x-4.0 mellum granite-docling ", .expressions = {SCANNER_GPT2}},
    {.names = " mpt olmo ", .composes = true, .expressions = {SCANNER_GPT2}},
    {.names = " starcoder refact smollm codeshell minerva-7b ", .expressions = {"\\p{N}", SCANNER_GPT2}},
    {.names = " command-r exaone ", .composes = true, .expressions = {"\\p{N}", SCANNER_GPT2}},
    {.names = " llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral lfm2 midm-2.0 ",
     .ignores_merges = true,
     .adds_bos = true,
     .expressions = {SCANNER_LLAMA3}},
    {.names = " dbrx smaug-bpe glm4 chatglm-bpe ", .expressions = {SCANNER_LLAMA3}},
    {.names = " qwen2 deepseek-r1-qwen megrez ", .composes = true, .expressions = {SCANNER_QWEN2}},
    {.names = " hunyuan solar-open ", .expressions = {SCANNER_QWEN2}},
    {.names = " qwen35 ", .composes = true, .expressions = {SCANNER_QWEN35}},
    {.names = " tekken ", .ignores_merges = true, .adds_bos = true, .expressions = {CAPITALS("") "|\\p{N}" AFTER}},
    {.names = " gpt-4o llama4 kanana2 minimax-m2 ", .expressions = {CAPITALS(CASES) "|\\p{N}{1,3}" AFTER}},
    {.names = " seed-coder ",
     .expressions = {SCANNER_ENGLISH SCANNER_WORD "|\\p{N}{1}| ?[^\\s\\p{L}\\p{N}\\r\\n]+" SCANNER_LINES}},
    {.names = " deepseek-v3 hunyuan-dense joyai-llm ",
     .expressions = {"\\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+",
                     "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"
                     "| ?[\\p{P}\\p{S}]+[\\r\\n]*" SCANNER_LINES}},
    {.names = " deepseek-coder ", .expressions = {"[\r\n]", "\\s?\\p{L}+", "\\s?\\p{P}+", CHINESE, "\\p{N}"}},
    {.names = " deepseek-llm ",
     .expressions = {"[\r\n]", LETTERS, "\\s?[!-/:-~！-／：-～‘-‟　-。]+", "\\s+$", CHINESE, "\\p{N}"}},
};

const gguf_splits *gguf_splits_find(const char *name)
{
    size_t length = strcspn(name, " ");
    for (size_t i = 0; length > 0 && !name[length] && i < sizeof known / sizeof *known; i++)
        for (const char *at = known[i].names; (at = strstr(at, name)); at++)
            if (at[-1] == ' ' && at[length] == ' ')
                return &known[i];
    return NULL;
}

static bool same_expressions(const char *const *a, const char *const *b)
{
    for (; *a && *b && !strcmp(*a, *b); a++)
        b++;
    return !*a && !*b;
}

const char *gguf_splits_name(const gguf_splits *splits, size_t *length)
{
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (known[i].composes == splits->composes && known[i].ignores_merges == splits->ignores_merges &&
            same_expressions(known[i].expressions, splits->expressions)) {
            *length = strcspn(known[i].names + 1, " ");
            return known[i].names + 1;
        }
    return NULL;
}
