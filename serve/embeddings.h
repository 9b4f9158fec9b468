/* /embeddings: texts as vectors, computed by the worker between steps. */
#ifndef TENON_SERVE_EMBEDDINGS_H
#define TENON_SERVE_EMBEDDINGS_H

#include "state.h"

void embeddings_answer(api *a, exchange *x);

#endif
