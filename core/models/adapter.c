/* Linear with an adapter: y = W x + U (D x). */
#include "models/adapter.h"

#include <stdio.h>

void adapter_build(graph_builder *b, graph_module *module, const char *list, int64_t index, int64_t in, int64_t rank,
                   int64_t out, adapter *a)
{
    char name[24];
    snprintf(name, sizeof name, "%lld", (long long)index);
    graph_module *m = build_module(b, build_module(b, module, list, "ModuleList"), name, "Sequential");
    a->down = parts_linear(b, m, "0", in, rank, false, NULL);
    a->up = parts_linear(b, m, "1", rank, out, false, NULL);
}

tn_tensor adapter_linear(graph_run *r, const graph_site *site, const adapter *a, const tn_tensor *x)
{
    tn_tensor y = steps_linear(r, site, x);
    if (a->down) {
        tn_tensor low = steps_linear(r, a->down, x), more = steps_linear(r, a->up, &low);
        steps_add(r, &y, &more);
    }
    return y;
}
