/* Inside core: methods of texts that look into them. */
#ifndef TENON_CORE_TEXT_SEARCH_H
#define TENON_CORE_TEXT_SEARCH_H

#include "template/runtime.h"

/* The text of an argument; fails, calling it `what`, if it is none. */
const string *text_search_text(sandbox *s, value v, const char *what);

#endif
