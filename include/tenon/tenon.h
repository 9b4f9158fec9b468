/* Tenon: what a program that embeds the runtime includes. The command line is built on nothing else. One header per
 * concept: configuration and plugins, models, single operations, sessions, text, files.
 *
 * Rules of all of them, beside those of operation.h:
 *  - Strings are UTF-8. A pointer that a function returns is borrowed from the object that it came from unless its
 *    comment says "owned".
 *  - [any thread]: from any thread, also at the same time. [one thread]: by one thread at a time for one object, the
 *    first parameter. A model and its sessions are one object in this.
 *  - Who passes a struct sets its size, also where the call fills it, which writes no more than that. A size of 0 is
 *    TN_E_USAGE, and so is NULL where something is needed. Lists that are returned are arrays of pointers, each to a
 *    struct with its size, in one allocation: free(). Closing and freeing NULL does nothing, and asking it gives 0 or
 *    NULL. */
#ifndef TENON_TENON_H
#define TENON_TENON_H

#include <tenon/borrow.h>
#include <tenon/cache.h>
#include <tenon/chat.h>
#include <tenon/check.h>
#include <tenon/continue.h>
#include <tenon/dataset.h>
#include <tenon/device.h>
#include <tenon/embed.h>
#include <tenon/engine.h>
#include <tenon/error.h>
#include <tenon/file.h>
#include <tenon/grammar.h>
#include <tenon/group.h>
#include <tenon/kernel.h>
#include <tenon/lock.h>
#include <tenon/machine.h>
#include <tenon/media.h>
#include <tenon/model.h>
#include <tenon/notices.h>
#include <tenon/parallel.h>
#include <tenon/plugins.h>
#include <tenon/quantize.h>
#include <tenon/session.h>
#include <tenon/single.h>
#include <tenon/tensor.h>
#include <tenon/text.h>
#include <tenon/train.h>
#include <tenon/whole.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TN_VERSION "0.1.0"

/* The version of the library that is running. Static storage. [any thread] */
TN_API const char *tn_version(void);

#ifdef __cplusplus
}
#endif
#endif
