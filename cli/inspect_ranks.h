/* tenon inspect --parallel: what each rank would hold, and how long all would take. */
#ifndef TENON_CLI_INSPECT_RANKS_H
#define TENON_CLI_INSPECT_RANKS_H

#include "cli.h"

/* Opens the model as each rank in turn, without the others, and prints what it has. */
tn_status inspect_ranks(const options *o, tn_error *err);

/* What --network says. */
typedef struct network {
    double hop, rate; /* seconds that a message takes at least, and bytes in a second                    */
} network;

tn_status network_read(const char *text, network *n, tn_error *err);

/* Of a call of so many tokens: what ranks exchange, and seconds, at the least. */
typedef struct network_call {
    int64_t tokens, messages, bytes;
    double exchange, compute;
} network_call;

/* each: of how many ranks a stage is; stages compute one after the other. list [ranks]. */
network_call network_call_of(const network *n, const tn_forecast *list, int32_t ranks, int32_t each, int64_t tokens,
                             tn_dtype dtype, const tn_machine *machine);

tn_status network_print(const network_call *calls, size_t count, tn_error *err);
json_t *network_json(const network_call *calls, size_t count);

#endif
