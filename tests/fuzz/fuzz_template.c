/* Any bytes as a chat template and, behind a NUL, a conversation: rendered with that one, with a fixed one, and with
 * one whose only message is the template. None of it may take longer than the limits of templates promise. */
#include "fuzz.h"

#include <jansson.h>
#include <tenon/chat.h>
#include <time.h>

FUZZ_ENTRY(fuzz_template)

static const char fixed[] =
    "[{\"role\":\"system\",\"content\":\"Be brief.\"},{\"role\":\"user\",\"content\":\"H\\u00e9 <b>you</b>\"},"
    "{\"role\":\"assistant\",\"content\":\"<think>a</think> b\",\"reasoning_content\":\"a\",\"tool_calls\":[{\"type\":"
    "\"function\",\"function\":{\"name\":\"f\",\"arguments\":{\"x\":1.5,\"y\":[true,null]}}}]},"
    "{\"role\":\"tool\",\"content\":\"12\",\"name\":\"f\"},{\"role\":\"user\",\"content\":\"And now?\"}]";
static const char tools[] = "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"description\":\"d\",\"parameters\":"
                            "{\"type\":\"object\",\"properties\":{\"x\":{\"type\":\"number\"}}}}}]";

static double processor_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* All of a template's steps take less than a second of a processor, also under sanitizers. Tests replay the corpus on
 * machines and with tools of any speed: it is the fuzzer that looks at the clock. */
static void need_fast(double since)
{
#ifdef TN_FUZZER
    fuzz_require(processor_seconds() - since < 1, "a template takes more than a second");
#else
    (void)since;
#endif
}

/* False: it reached a limit, and would again with another conversation. */
static bool render(const tn_template *t, const char *messages, size_t length, bool with_tools)
{
    tn_render_options options = {.size = sizeof options,
                                 .add_generation_prompt = !with_tools,
                                 .continue_final_message = with_tools,
                                 .tools = with_tools ? tools : NULL,
                                 .variables = with_tools ? "{\"enable_thinking\":false,\"bos_token\":\"<s>\"}" : NULL,
                                 .now = 1700000000};
    tn_error err = TN_ERROR_INIT;
    char *text = NULL;
    size_t size = 0;
    double start = processor_seconds();
    tn_status status = tn_template_render(t, messages, length, &options, &text, &size, &err);
    fuzz_agree(status == TN_OK, &err);
    fuzz_require(status == err.code, "the status and the error disagree");
    fuzz_require(status != TN_OK || (text && text[size] == '\0'), "a text does not end");
    need_fast(start);
    free(text);
    return status == TN_OK || !strstr(err.message, "the template takes more than");
}

int fuzz_template(const uint8_t *data, size_t size)
{
    const uint8_t *rest;
    size_t rest_size, first = fuzz_parts(data, size, &rest, &rest_size);
    tn_error err = TN_ERROR_INIT;
    double start = processor_seconds();
    tn_template *t = tn_template_parse(size ? (const char *)data : "", first, "input", &err);
    fuzz_agree(t != NULL, &err);
    need_fast(start);
    if (t && render(t, fixed, sizeof fixed - 1, false)) {
        render(t, fixed, sizeof fixed - 1, true);
        if (rest)
            render(t, (const char *)rest, rest_size, false);
        json_t *own = json_pack("[{s:s,s:s%}]", "role", "user", "content", size ? (const char *)data : "", first);
        char *text = json_dumps(own, 0);
        if (text)
            render(t, text, strlen(text), false);
        free(text);
        json_decref(own);
    }
    tn_template_free(t);
    return 0;
}
