/* Tenon: what the library put right by itself. tenon.h has the rules. */
#ifndef TENON_NOTICES_H
#define TENON_NOTICES_H

#include <stddef.h>
#include <tenon/error.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Lines for whoever runs the program, in the order in which they came, each once: a kernel changed something of the
 * process and it was put back ("npu_x (x.so) changed the working directory in forward; it was put back"), or a kernel
 * whose results were wrong was taken off a model. They stay for the life of the process; NULL behind the last. [any
 * thread] */
TN_API size_t tn_notice_count(void);
TN_API const char *tn_notice_get(size_t index);

#ifdef __cplusplus
}
#endif
#endif
