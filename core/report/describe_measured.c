/* What was measured, once for all sites of a shape. */
#include "report/describe.h"

#include <string.h>

static bool same(const tn_site_report *a, const tn_site_report *b, size_t verdict)
{
    return verdict < b->verdict_count && a->site->op == b->site->op &&
           !strcmp(a->verdicts[verdict]->measured, b->verdicts[verdict]->measured);
}

/* Sites that a verdict of the same words is about; 0 where an earlier site stands for them. */
static size_t count_alike(const tn_report *r, size_t site, size_t verdict)
{
    size_t count = 0;
    for (size_t i = 0; i < r->site_count; i++) {
        if (!same(r->sites[site], r->sites[i], verdict))
            continue;
        if (i < site)
            return 0;
        count++;
    }
    return count;
}

bool describe_measured_next(const tn_report *r, describe_measured *m)
{
    for (; m->next_site < r->site_count; m->next_site++, m->next_verdict = 0)
        while (m->next_verdict < r->sites[m->next_site]->verdict_count) {
            size_t verdict = m->next_verdict++;
            m->op = r->sites[m->next_site]->site->op;
            m->verdict = r->sites[m->next_site]->verdicts[verdict];
            m->sites = m->verdict->measured[0] ? count_alike(r, m->next_site, verdict) : 0;
            if (m->sites > 0)
                return true;
        }
    return false;
}
