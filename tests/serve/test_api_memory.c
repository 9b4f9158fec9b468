/* Each allocation of a request on its way to the worker fails once: it is answered, with an error of ours or as if
 * nothing had been, nothing is lost, and the server lives. */
#include "../faults/failing_memory.h"
#include "asked.h"
#include "suite.h"

#include <stdlib.h>
#include <string.h>

static const struct {
    const char *path, *body;
    bool long_tokens; /* jansson's own allocations do not fail: one that a long token wants is not missed by it       */
} requests[] = {
    {"/chat/completions",
     "{\"messages\": [{\"role\": \"developer\", \"content\": \"b\"}, {\"role\": \"user\", \"content\": [{\"type\": "
     "\"text\", \"text\": \"a\"}]}, {\"role\": \"assistant\", \"content\": \"c\", \"tool_calls\": [{\"function\": "
     "{\"name\": \"f\", \"arguments\": \"{}\"}}]}, {\"role\": \"tool\", \"content\": \"r\"}], \"max_tokens\": "
     "1, \"stop\": [\"x\"], \"logit_bias\": {\"5\": 1}, \"tools\": [{\"type\": \"function\", \"function\": "
     "{\"name\": \"f\"}}], \"stream\": true, \"n\": 2, \"logprobs\": true, \"top_logprobs\": 1}",
     false},
    {"/chat/completions",
     "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}], \"max_tokens\": 1, \"stop_token_ids\": [7], "
     "\"response_format\": {\"type\": \"json_schema\", \"json_schema\": {\"name\": \"s\", \"schema\": {\"type\": "
     "\"object\", \"properties\": {\"a\": {\"type\": \"integer\"}}}}}}",
     true},
    {"/chat/completions",
     "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}], \"max_tokens\": 1, \"tool_choice\": \"required\", "
     "\"tools\": [{\"type\": \"function\", \"function\": {\"name\": \"f\", \"parameters\": {\"type\": \"object\"}}}]}",
     false},
    {"/completions", "{\"prompt\": [\"And\", \"the\"], \"max_tokens\": 1, \"echo\": true, \"stream\": true}", false},
    {"/completions", "{\"prompt\": [5, 6], \"max_tokens\": 0, \"echo\": true, \"logprobs\": 2}", false},
    {"/apply-template", "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}], \"reasoning_effort\": \"none\"}",
     true},
    {"/tokenize", "{\"content\": \"And it\", \"with_pieces\": true}", false},
    {"/detokenize", "{\"tokens\": [5, 6]}", false},
    {"/embeddings", "{\"input\": \"a\"}", false},
    {"/models", NULL, false},
    {"/metrics", NULL, false},
};

/* One request with one failing allocation. What the worker frees is not seen: *lost is what is left of a request that
 * did not come to it. Returns the status. */
static int walk(api *a, size_t i, uint64_t chosen, bool recording, size_t *lost)
{
    exchange *x = asked_make(requests[i].path, requests[i].body);
    failing_begin(chosen, recording);
    asked_hand(a, x);
    failing_end();
    int status = asked_status(a, x);
    *lost = asked_ended_here(x) ? failing_leaks(requests[i].path) : 0;
    asked_forget(x);
    return status;
}

START_TEST(requests_without_memory)
{
    if (!requests[_i].long_tokens)
        json_set_alloc_funcs(malloc, free); /* it knows only the C library's                                        */
    api *a = asked_open(NULL);
    size_t lost;
    int usual = walk(a, (size_t)_i, 0, false, &lost); /* what is made once is made now                            */
    ck_assert_int_eq(walk(a, (size_t)_i, 0, true, &lost), usual);
    ck_assert_uint_eq(lost, 0);
    const uint64_t *borrowed;
    size_t points = failing_points(&borrowed);
    uint64_t *chosen = malloc((points + 1) * sizeof *chosen);
    ck_assert(chosen && points > 0);
    memcpy(chosen, borrowed, points * sizeof *chosen);
    for (size_t k = 0; k < points; k++) {
        int status = walk(a, (size_t)_i, chosen[k], false, &lost);
        ck_assert_msg(status == usual || status == 500, "allocation %llu: %d", (unsigned long long)chosen[k], status);
        ck_assert_msg(lost == 0, "allocation %llu: see above", (unsigned long long)chosen[k]);
    }
    ck_assert_int_eq(walk(a, (size_t)_i, 0, false, &lost), usual);
    free(chosen);
}
END_TEST

int main(void)
{
    TCase *tcase = suite_open("api_memory", 120);
    tcase_add_loop_test(tcase, requests_without_memory, 0, (int)(sizeof requests / sizeof *requests));
    return suite_run();
}
