/* What a report says of a module. */
#include "report/describe.h"

const tn_site_report *describe_site(const describe_view *view, const graph_module *module)
{
    return module->site && module->site->index < view->report->site_count ? view->report->sites[module->site->index]
                                                                          : NULL;
}

const tn_site_report *describe_outer_site(const describe_view *view, const graph_module *module)
{
    const graph_site *outer = module->site ? module->site->outer : NULL;
    return outer && outer->module == module && describe_site(view, module) ? view->report->sites[outer->index] : NULL;
}

const tn_site_report *describe_shown_outer(const describe_view *view, const graph_module *module)
{
    const tn_site_report *outer = describe_outer_site(view, module);
    return outer && (outer->kernel || view->explain) ? outer : NULL;
}

const char *describe_covering(const describe_view *view, const tn_site_report *site)
{
    const graph_site *outer = site->covered_by ? graph_find_site(view->target->graph, site->covered_by) : NULL;
    return outer ? view->report->sites[outer->index]->kernel : NULL;
}
