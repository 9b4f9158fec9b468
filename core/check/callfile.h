/* Inside core: one call of a kernel in a file, with everything that is needed to make it again. */
#ifndef TENON_CORE_CALLFILE_H
#define TENON_CORE_CALLFILE_H

#include <tenon/tenon.h>

/* What there is to say beside the tensors. */
typedef struct callfile_facts {
    const char *kernel, *plugin; /* its id; the file that brought it, or ""                          */
    const char *detail;          /* which element was wrong, both values                             */
    double worst;                /* in units of the tolerance                                        */
    int32_t threads;             /* that the call was for                                            */
} callfile_facts;

/* Writes site, parameters, inputs and outputs (what the kernel gave: call->out; what eager gives: eager->out) as
 * tensors of a safetensors file. Strides may be any; what has no data is left out. */
tn_status callfile_write(const char *path, const callfile_facts *facts, const tn_call *call, const tn_call *eager,
                         tn_error *err);

typedef struct callfile {
    callfile_facts facts;
    tn_site site;
    tn_call call, eager; /* as written, dense, read-only                                             */
    tn_safetensors *file;
    tn_tensor *params;
    void **copies; /* of tensors at odd addresses                                                    */
    size_t copy_count;
} callfile;

/* Reads one and checks all of it against the table of operations: then eager can compute the call. Its texts are as the
 * file has them, and not to be shown as they are. Close with callfile_close in any case. */
tn_status callfile_open(callfile *c, const char *path, tn_error *err);
void callfile_close(callfile *c);

#endif
