/* Inside core/plugin: opening a plugin for good. */
#ifndef TENON_CORE_LOADER_H
#define TENON_CORE_LOADER_H

#include "plugin/stage.h"

/* Opens the library at the absolute path, local and resident; it is never closed. staged receives what its constructor
 * registered. changed receives what the constructor altered and the host put back ("" if nothing), threads
 * how many more there are now. One thread at a time: the caller holds the scan's lock. */
tn_status loader_open(const char *path, stage *staged, char *changed, size_t changed_size, size_t *threads,
                      tn_error *err);

#endif
