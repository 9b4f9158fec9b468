/* The families, and how a template tells which it is. */
#include "splitter_family.h"

#include "splitter_text.h"

#include <string.h>

#define THOUGHT START "<think>" THINK
#define CLOSED "</think>"

#define HERMES "<tool_call>" WS CALL WS "</tool_call>"
#define LIST "[" WS CALL WS MANY "," WS CALL WS AGAIN "]"
#define PYTHONS "[" WS PYTHON WS MANY "," WS PYTHON WS AGAIN "]"
/* {"name": {...}} */
#define NAMED "{" WS "\"" NAME "\"" WS ":" WS ARGS WS "}" DONE
#define SEVERAL CALL TELL WS MANY ";" WS CALL TELL WS AGAIN

#define FUNCTION(VALUE_)                                                                                               \
    "<function=" NAME ">" WS MANY "<parameter=" KEY ">" VALUE_ "</parameter>" WS AGAIN "</function>" DONE
#define INVOKE(MARK_, BEHIND_)                                                                                         \
    "<" MARK_ "invoke name=\"" NAME "\">" WS MANY "<" MARK_ "parameter name=\"" KEY "\"" BEHIND_ ">" VALUE "</" MARK_  \
    "parameter>" WS AGAIN "</" MARK_ "invoke>" DONE TELL WS
#define DSML "｜DSML｜"
#define DSML_CALLS(TAG_) "<" DSML TAG_ ">" WS MANY INVOKE(DSML, " string=\"" SKIP "\"") AGAIN "</" DSML TAG_ ">"

/* Keys and values of tags that may have a suffix, behind the name. */
#define PAIRS(SUFFIX_)                                                                                                 \
    MANY "<arg_key" SUFFIX_ ">" KEY "</arg_key" SUFFIX_ ">" WS "<arg_value" SUFFIX_ ">" VALUE "</arg_value" SUFFIX_    \
         ">" WS AGAIN "</tool_call" SUFFIX_ ">" DONE
#define HUNYUAN_V3(SUFFIX_)                                                                                            \
    "<tool_calls" SUFFIX_ ">" WS MANY "<tool_call" SUFFIX_ ">" WS NAME WS "<tool_sep" SUFFIX_ ">" WS PAIRS(SUFFIX_)    \
    TELL WS AGAIN "</tool_calls" SUFFIX_ ">"

#define DEEPSEEK(CALL_)                                                                                                \
    "<｜tool▁calls▁begin｜>" WS MANY "<｜tool▁call▁begin｜>" CALL_ WS "<｜tool▁call▁end｜>" TELL WS AGAIN              \
    "<｜tool▁calls▁end｜>"

#define LLAMA3                                                                                                         \
    {                                                                                                                  \
        "<|python_tag|>" WS SEVERAL, START SEVERAL, THOUGHT                                                            \
    }

/* Of a message to a tool, whose name may stand before its channel, too. */
#define HARMONY "to=functions." NAME SKIP "<|message|>" WS ARGS DONE TELL WS MANY "<|call|>" AGAIN

/* What stands around the content, and may stand before calls. */
#define AROUND(OPEN_, CLOSE_, CALLS_) CLOSE_ WS CALLS_, START OPEN_ WS, CLOSE_ WS LAST

#define TOOL_CALLS(CALLS_) "<tool_calls>" WS CALLS_ "</tool_calls>"
#define HUNYUAN                                                                                                        \
    {                                                                                                                  \
        TOOL_CALLS(LIST WS), TOOL_CALLS(MANY HERMES WS AGAIN), TOOL_CALLS(MANY CALL WS AGAIN),                         \
            AROUND("<answer>", "</answer>", TOOL_CALLS(LIST WS)), THOUGHT                                              \
    }

static const splitter_family families[] = {
    {.name = "harmony",
     .marks = {"<|channel|>", "<|message|>"},
     .patterns = {"<|start|>assistant" WS HARMONY, START " " WS HARMONY, "<|channel|>commentary" WS HARMONY,
                  "<|channel|>analysis" WS HARMONY, "<|channel|>analysis" WS "<|message|>" THINK,
                  "<|channel|>final" SKIP "<|message|>", "<|channel|>commentary" WS "<|message|>", "<|start|>assistant",
                  "<|end|>", "<|return|>", "<|call|>"},
     .closes = {"<|end|>", KEEP "<|start|>", KEEP "<|channel|>", KEEP "<|return|>", KEEP "<|call|>"}},
    {.name = "gemma4",
     .marks = {"<|tool_call>"},
     .patterns = {"<|tool_call>call:" NAME BRACES DONE "<tool_call|>", "<|channel>thought" THINK},
     .closes = {"<channel|>"},
     .quote = "<|\"|>"},
    {.name = "functiongemma",
     .marks = {"<start_function_call>"},
     .patterns = {"<start_function_call>call:" NAME BRACES DONE "<end_function_call>", THOUGHT},
     .closes = {CLOSED},
     .quote = "<escape>"},
    {.name = "minimax_m2",
     .marks = {"<minimax:tool_call>"},
     .patterns = {"<minimax:tool_call>" WS MANY INVOKE("", "") AGAIN "</minimax:tool_call>", THOUGHT},
     .closes = {CLOSED}},
    {.name = "seed_oss",
     .marks = {"<seed:tool_call>"},
     .patterns = {"<seed:tool_call>" WS FUNCTION(VALUE) WS "</seed:tool_call>", START "<seed:think>" THINK},
     .closes = {"</seed:think>"}},
    {.name = "deepseek_dsml",
     .marks = {DSML},
     .patterns = {DSML_CALLS("function_calls"), DSML_CALLS("tool_calls"), THOUGHT},
     .closes = {CLOSED}},
    {.name = "deepseek",
     .marks = {"<｜tool▁calls▁begin｜>"},
     .patterns = {DEEPSEEK("function<｜tool▁sep｜>" NAME WS "```json" WS ARGS WS "```" DONE),
                  DEEPSEEK(NAME "<｜tool▁sep｜>" WS ARGS DONE), THOUGHT},
     .closes = {CLOSED}},
    {.name = "kimi",
     .marks = {"<|tool_call_begin|>"},
     .patterns = {"<|tool_calls_section_begin|>" WS MANY "<|tool_call_begin|>" WS "functions." NAME ":" SKIP
                  "<|tool_call_argument_begin|>" WS ARGS WS "<|tool_call_end|>" DONE TELL WS AGAIN
                  "<|tool_calls_section_end|>",
                  THOUGHT},
     .closes = {CLOSED}},
    {.name = "cohere",
     .marks = {"<|START_ACTION|>"},
     .patterns = {"<|START_ACTION|>" WS LIST WS "<|END_ACTION|>", START "<|START_THINKING|>" THINK,
                  "<|START_RESPONSE|>", "<|END_RESPONSE|>"},
     .closes = {"<|END_THINKING|>"}},
    {.name = "hunyuan_v3",
     .marks = {"<tool_sep"},
     .patterns = {HUNYUAN_V3(":opensource"), HUNYUAN_V3(""), START "<think:opensource>" THINK, THOUGHT},
     .closes = {CLOSED, "</think:opensource>"}},
    {.name = "glm",
     .marks = {"<arg_key>"},
     .patterns = {"<tool_call>" WS NAME WS PAIRS(""), THOUGHT},
     .closes = {CLOSED}},
    {.name = "solar_open",
     .marks = {"<|tool_call:begin|>"},
     .patterns = {"<|tool_call:begin|>" SKIP "<|tool_call:name|>" NAME "<|tool_call:args|>" WS ARGS WS
                  "<|tool_call:end|>" DONE,
                  "<|begin|>assistant", "<|content|>", "<|tool_calls|>", "<|end|>", "<|flush|>", "<|calls|>",
                  START "<|think|>" THINK},
     .closes = {"<|end|>"}},
    {.name = "apertus",
     .marks = {"<|tools_prefix|>"},
     .patterns = {"<|tools_prefix|>" WS "[" WS NAMED WS MANY "," WS NAMED WS AGAIN "]" WS "<|tools_suffix|>",
                  START "<|inner_prefix|>" THINK},
     .closes = {"<|inner_suffix|>"}},
    {.name = "qwen3_coder",
     .marks = {"<function=", "<parameter="},
     .patterns = {"<tool_call>" WS FUNCTION(LINES) WS "</tool_call>", HERMES,
                  FUNCTION(LINES) TELL WS MANY "</tool_call>" AGAIN, THOUGHT},
     .closes = {CLOSED}},
    {.name = "lfm2",
     .marks = {"<|tool_call_start|>"},
     .patterns = {"<|tool_call_start|>" WS PYTHONS WS "<|tool_call_end|>",
                  "<|tool_call_start|>" WS LIST WS "<|tool_call_end|>", THOUGHT},
     .closes = {CLOSED}},
    {.name = "olmo3",
     .marks = {"<function_calls>"},
     .patterns = {"<function_calls>" WS MANY PYTHON WS AGAIN "</function_calls>", THOUGHT},
     .closes = {CLOSED}},
    {.name = "llama4",
     .marks = {"<|header_start|>"},
     .patterns = {"<|python_start|>" WS PYTHONS WS "<|python_end|>",
                  "<|python_start|>" WS SEVERAL MANY "<|python_end|>" AGAIN,
                  START "<|python_start|>" WS "<|python_end|>" WS, START PYTHONS, START SEVERAL, THOUGHT},
     .closes = {CLOSED}},
    {.name = "mistral",
     .marks = {"[TOOL_CALLS]"},
     .patterns = {"[TOOL_CALLS]" WS LIST, "[TOOL_CALLS]" WS NAME "[ARGS]" WS ARGS DONE TELL,
                  "[TOOL_CALLS]" WS NAME WS ARGS DONE TELL,
                  "[TOOL_CALLS]" WS NAME "[CALL_ID]" SKIP "[ARGS]" WS ARGS DONE TELL, START "[THINK]" THINK, THOUGHT},
     .closes = {CLOSED, "[/THINK]"}},
    {.name = "hunyuan", .marks = {"<tool_calls>"}, .patterns = HUNYUAN, .closes = {CLOSED}},
    {.name = "nemotron",
     .marks = {"<TOOLCALL>"},
     .patterns = {"<TOOLCALL>" WS LIST WS "</TOOLCALL>", THOUGHT},
     .closes = {CLOSED}},
    {.name = "granite",
     .marks = {"<|tool_call|>"},
     .patterns = {"<|tool_call|>" WS LIST TELL WS MANY "<|/tool_call|>" AGAIN,
                  AROUND("<response>", "</response>", "<|tool_call|>" WS LIST), THOUGHT},
     .closes = {CLOSED}},
    {.name = "llama3", .marks = {"<|python_tag|>"}, .patterns = LLAMA3, .closes = {CLOSED}},
    {.name = "llama3", .marks = {"<|start_header_id|>", "\"parameters\": "}, .patterns = LLAMA3, .closes = {CLOSED}},
    {.name = "ernie",
     .marks = {"<tool_call>", "<response>"},
     .patterns = {HERMES, AROUND("<response>", "</response>", HERMES), THOUGHT},
     .closes = {CLOSED}},
    {.name = "hermes", .marks = {"<tool_call>"}, .patterns = {HERMES, THOUGHT}, .closes = {CLOSED}},
    {.name = "hunyuan", .marks = {"<answer>"}, .patterns = HUNYUAN, .closes = {CLOSED}},
    /* Of no marks: what is left. */
    {.name = "none", .patterns = {THOUGHT}, .closes = {CLOSED}},
};

const splitter_family *splitter_family_of(const char *template_text)
{
    const splitter_family *family = families;
    for (; family->marks[0]; family++)
        if (template_text && strstr(template_text, family->marks[0]) &&
            (!family->marks[1] || strstr(template_text, family->marks[1])))
            break;
    return family;
}

const char *splitter_family_name(const splitter_family *family)
{
    return family->name;
}

static bool is_text(char c)
{
    return !(c >= 0 && c < 0x20) || splitter_space(c);
}

size_t splitter_family_text(const char *pattern)
{
    size_t length = 0;
    while (pattern[length] && is_text(pattern[length]))
        length++;
    return length;
}

bool splitter_family_calls(const char *pattern)
{
    return strpbrk(pattern, NAME CALL PYTHON) != NULL;
}

static bool has(const char *pattern, const char *text, size_t length)
{
    return memmem(pattern, strlen(pattern), text, length) != NULL;
}

bool splitter_family_knows(const splitter_family *family, const char *text, size_t length)
{
    for (int i = 0; i < SPLITTER_PATTERNS && family->patterns[i]; i++)
        if (has(family->patterns[i], text, length))
            return true;
    for (int i = 0; i < SPLITTER_CLOSES && family->closes[i]; i++)
        if (has(family->closes[i], text, length))
            return true;
    return family->quote && has(family->quote, text, length);
}

static size_t trimmed(const char *text, size_t length)
{
    while (length && splitter_space(text[length - 1]))
        length--;
    return length;
}

bool splitter_family_inside(const splitter_family *family, const char *prompt, size_t length)
{
    length = trimmed(prompt, length);
    for (int i = 0; i < SPLITTER_PATTERNS && family->patterns[i]; i++) {
        const char *mark = family->patterns[i] + splitter_family_is(family->patterns[i], START);
        size_t size = splitter_family_text(mark);
        if (strcmp(mark + size, THINK) != 0)
            continue;
        size = trimmed(mark, size);
        if (size <= length && memcmp(prompt + length - size, mark, size) == 0)
            return true;
    }
    return false;
}
