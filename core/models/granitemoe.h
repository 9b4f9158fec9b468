/* Inside core: what the modeling files of Granite's experts share. */
#ifndef TENON_CORE_GRANITEMOE_H
#define TENON_CORE_GRANITEMOE_H

#include "models/decoder.h"

/* What files call router and experts. */
extern const build_alias granitemoe_aliases[];

#endif
