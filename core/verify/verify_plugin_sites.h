/* Inside core/verify: made-up sites that an implementation takes. */
#ifndef TENON_CORE_VERIFY_PLUGIN_SITES_H
#define TENON_CORE_VERIFY_PLUGIN_SITES_H

#include <tenon/tenon.h>

#include <stdbool.h>

enum { VERIFY_PLUGIN_SITES_MAX = 24 };

/* Sites of one dtype, without parameters, the least work first: every value of every axis that the implementation
 * names, no feature, each alone and all together, and dimensions of many sizes, each of them at least once. They are
 * valid by the operation's row and keep to the rules for dimensions; match_site has the last word. quick: fewer and
 * smaller ones. Returns how many; the same ones for the same implementation. */
size_t verify_plugin_sites_draw(const tn_impl *impl, tn_dtype dtype, bool quick,
                                tn_site sites[VERIFY_PLUGIN_SITES_MAX]);

/* The nearest size that an implementation's rules for this dimension allow. */
int64_t verify_plugin_sites_fit(const tn_impl *impl, tn_dim dim, int64_t size);

/* "norm w, width 33": what tells it apart from others. */
void verify_plugin_sites_text(const tn_site *site, char *text, size_t size);

#endif
