/* A hash of what determines answers. */
#include "fingerprint.h"

#include "../cli/digest.h"

#include <stdio.h>

void fingerprint_make(api *a, const char *folder, const char *kernels, bool same_bits)
{
    uint64_t hash = DIGEST_START;
    tn_report *report = tn_model_report(a->model, NULL);
    digest_text(&hash, tn_version());
    digest_checkpoint(&hash, folder);
    digest_text(&hash, kernels);
    digest_text(&hash, report ? report->summary : NULL);
    digest_number(&hash, same_bits);
    digest_text(&hash, tn_dtype_name(a->info.dtype));
    digest_text(&hash, a->info.device);
    digest_number(&hash, (int64_t)tn_cpu_flags());
    tn_report_free(report);
    snprintf(a->fingerprint, sizeof a->fingerprint, "fp_%016llx", (unsigned long long)hash);
}
