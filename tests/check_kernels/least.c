/* The least time of some work: bytes over the memory's rates, operations over the fastest arithmetic. */
#include "least.h"

#include <math.h>

double least_flops_seconds(const ceilings *c, uint64_t flags, tn_dtype dtype, double flops, const char **which)
{
    double best = 0;
    for (int p = 0; ceiling_peak_at(p); p++) {
        const ceiling_peak *peak = ceiling_peak_at(p);
        bool allowed = !(peak->flags & ~flags) && !peak->narrow_sums;
        if (allowed && (peak->dtype == TN_F32 || peak->dtype == dtype) && c->peak[p] > best) {
            best = c->peak[p];
            *which = peak->brief;
        }
    }
    return best > 0 ? flops / best : 0;
}

/* What a byte costs that is written besides being read follows from reading and copying. */
double least_memory_seconds(const ceilings *c, double read, double written, bool in_place)
{
    double write = 2 / (in_place ? c->update : c->copy) - 1 / c->read;
    return read / c->read + written * fmax(write, 0);
}

double least_cached_seconds(const ceilings *c, double read, double written, bool in_place)
{
    double both = fmin(read, written), sum = 0;
    for (int part = 0; part < 2; part++) {
        ceiling_kind kind = part ? CEILING_READ : in_place ? CEILING_UPDATE : CEILING_COPY;
        double bytes = part ? read - both : both, alone = bytes > 0 ? ceiling_pass_seconds(kind, bytes, false) : 0;
        double team = bytes > 0 && c->threads > 1 ? ceiling_pass_seconds(kind, bytes, true) : alone;
        sum += fmin(team, alone);
    }
    return sum;
}
