/* /models, /models/ID and /version. */
#ifndef TENON_SERVE_MODELS_H
#define TENON_SERVE_MODELS_H

#include "state.h"

void models_list(api *a, exchange *x);
void models_get(api *a, exchange *x, const char *id);
void models_version(api *a, exchange *x);

#endif
