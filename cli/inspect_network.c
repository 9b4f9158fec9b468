/* tenon inspect --parallel --network: a cost model. A gather takes a hop for each doubling of ranks, and what a rank
 * gets of the others; one inside a stage is made of passes, and takes twice that. Ranks read weights and multiply at
 * the rates of this machine. */
#include "inspect_ranks.h"

#include "profile.h"

#include <math.h>
#include <stdlib.h>

tn_status network_read(const char *text, network *n, tn_error *err)
{
    char *end;
    double hop = strtod(text, &end), rate = *end == ',' ? strtod(end + 1, &end) : 0;
    *n = (network){hop * 1e-6, rate * 1e9};
    if (*end || !(hop >= 0) || !(rate > 0) || !isfinite(hop) || !isfinite(rate))
        return tn_fail(err, TN_E_USAGE, "--network",
                       "'%s' is no time of a message in microseconds and rate in GB/s, such as 20,1.1", text);
    return TN_OK;
}

static double gathering(const network *n, int32_t ranks, int64_t count, int64_t bytes)
{
    return (double)count * ceil(log2(ranks)) * n->hop + (double)(ranks - 1) / ranks * (double)bytes / n->rate;
}

network_call network_call_of(const network *n, const tn_forecast *list, int32_t ranks, int32_t each, int64_t tokens,
                             tn_dtype dtype, const tn_machine *machine)
{
    const tn_forecast *f = &list[0];
    network_call c = {.tokens = tokens,
                      .messages = f->gathers + f->passes + f->stage_gathers,
                      .bytes = f->gathered_bytes + f->passed_bytes + f->stage_gathered_bytes};
    c.exchange = gathering(n, ranks, f->gathers, f->gathered_bytes) + (double)f->passes * n->hop +
                 (double)f->passed_bytes / n->rate + 2 * gathering(n, each, f->stage_gathers, f->stage_gathered_bytes);
    for (int32_t begin = 0; begin < ranks; begin += each) {
        double most = 0;
        for (int32_t r = begin; r < begin + each; r++) {
            profile_limit limit = profile_limit_of(machine, dtype, list[r].weight_bytes, list[r].operations);
            double least = limit.memory > limit.arithmetic ? limit.memory : limit.arithmetic;
            most = least > most ? least : most;
        }
        c.compute += most;
    }
    return c;
}

tn_status network_print(const network_call *calls, size_t count, tn_error *err)
{
    char text[32];
    table t;
    table_start(&t, 6, 0x3e);
    table_cell(&t, "AT LEAST");
    table_cell(&t, "MESSAGES");
    table_cell(&t, "BYTES");
    table_cell(&t, "EXCHANGING");
    table_cell(&t, "COMPUTING");
    table_cell(&t, "TOKENS/S");
    for (size_t i = 0; i < count; i++) {
        const network_call *c = &calls[i];
        table_cell(&t, c->tokens == 1 ? "a token" : "a prompt of %lld", (long long)c->tokens);
        double rate = (double)c->tokens / (c->exchange + c->compute);
        table_cell(&t, "%lld", (long long)c->messages);
        table_cell(&t, "%s", bytes_text((double)c->bytes, text));
        table_cell(&t, "%.3g ms", c->exchange * 1e3);
        table_cell(&t, "%.3g ms", c->compute * 1e3);
        table_cell(&t, "%.*f", rate < 100 ? 1 : 0, rate);
    }
    putchar('\n');
    return table_print(&t, err);
}

json_t *network_json(const network_call *calls, size_t count)
{
    json_t *all = json_array();
    for (size_t i = 0; i < count; i++)
        json_array_append_new(all,
                              json_pack("{s:I, s:I, s:I, s:f, s:f}", "tokens", (json_int_t)calls[i].tokens, "messages",
                                        (json_int_t)calls[i].messages, "message_bytes", (json_int_t)calls[i].bytes,
                                        "exchange_seconds", calls[i].exchange, "compute_seconds", calls[i].compute));
    return all;
}
