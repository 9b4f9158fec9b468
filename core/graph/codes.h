/* Inside core/graph: quantised matrices that a builder reads. The first error sticks in b. */
#ifndef TENON_CORE_CODES_H
#define TENON_CORE_CODES_H

#include "graph/build.h"

/* A matrix of codes? */
bool codes_are(const tn_tensor *t);

/* Has it scales, zero points or groups of its own? */
bool codes_beside(const shards_parts *parts);

/* Those of codes that this builder has read. */
shards_parts codes_parts(const graph_builder *b, const tn_tensor *t);

/* The file's tensor called name: codes stay where they lie, but where values are asked for, which are copied. */
bool codes_place(graph_builder *b, const char *name, const build_form *form, tn_tensor *t);

/* In how many columns they may be cut, with what belongs to them; 0: nowhere. */
int64_t codes_columns_unit(const tn_tensor *t, const shards_parts *parts);

/* The one range of its columns that form has: codes with what belongs to them, where they begin and end with blocks and
 * groups; else their values. Copied. */
bool codes_columns(graph_builder *b, const char *full, const build_form *form, tn_tensor *t);

#endif
