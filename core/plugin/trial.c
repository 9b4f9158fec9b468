/* Opening a plugin in a child process first: what crashes, hangs or leaves does so there. The child uses dlopen itself,
 * which binds all symbols at once and says what is missing; libltdl reports every failure as "file not found". */
#include "plugin/trial.h"

#include "plugin/descriptor.h"
#include "plugin/environment.h"
#include "device/guard.h"
#include "plugin/stage.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { TRIAL_GOOD = 0, TRIAL_REFUSED = 1, TRIAL_NOT_OPENED = 2 };

typedef struct trial_report { /* shared with the child */
    char reason[768];
} trial_report;

typedef struct trial_context {
    const char *path;
    const elfnote *note;
    trial_report *report;
} trial_context;

static int trial_body(void *ctx)
{
    trial_context *t = ctx;
    stage staged;
    stage_begin(&staged);
    void *handle = dlopen(t->path, RTLD_NOW | RTLD_LOCAL);
    stage_end();
    if (!handle) {
        const char *why = dlerror();
        snprintf(t->report->reason, sizeof t->report->reason, "%s", why ? why : "no reason given");
        return TRIAL_NOT_OPENED;
    }
    tn_error err = TN_ERROR_INIT;
    if (staged.count == 0)
        tn_fail(&err, TN_E_KERNEL, NULL, "its constructor registers nothing with this host; link it with libtenon");
    else if (staged.count > 1)
        tn_fail(&err, TN_E_KERNEL, NULL, "it registers %zu times; use TN_PLUGIN once per file", staged.count);
    else
        descriptor_free(descriptor_read(staged.plugin, t->note, NULL, &err));
    snprintf(t->report->reason, sizeof t->report->reason, "%s", err.message);
    return err.code == TN_OK ? TRIAL_GOOD : TRIAL_REFUSED;
}

/* A child that sat still may have waited for a lock that a thread of this program held when it forked, or for a busy
 * machine: only one that spun is worth remembering as a hang. */
static void judge(const guard_result *end, double seconds, const trial_report *report, trial_verdict *verdict)
{
    char how[256];
    if (end->end == GUARD_RETURNED) {
        static const tn_plugin_state states[] = {TN_PLUGIN_LOADED, TN_PLUGIN_REFUSED, TN_PLUGIN_QUARANTINED};
        bool known = end->value >= TRIAL_GOOD && end->value <= TRIAL_NOT_OPENED;
        verdict->state = known ? states[end->value] : TN_PLUGIN_QUARANTINED;
        verdict->lasting = end->value == TRIAL_GOOD;
        snprintf(verdict->reason, sizeof verdict->reason, "%s%.740s",
                 end->value == TRIAL_NOT_OPENED ? "cannot be opened: " : "", report->reason);
        return;
    }
    verdict->state = TN_PLUGIN_QUARANTINED;
    verdict->lasting = end->end == GUARD_EXITED || end->end == GUARD_SIGNALLED ||
                       (end->end == GUARD_TIMEOUT && end->cpu_seconds > 0.5 * seconds);
    guard_describe(end, seconds, how, sizeof how);
    snprintf(verdict->reason, sizeof verdict->reason, "its constructor %s when it was tried in a child process", how);
}

void trial_run(const char *path, const elfnote *note, double seconds, trial_verdict *verdict)
{
    *verdict = (trial_verdict){.state = TN_PLUGIN_QUARANTINED};
    trial_report *report = mmap(NULL, sizeof *report, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (report == MAP_FAILED) {
        snprintf(verdict->reason, sizeof verdict->reason, "could not be tried: out of memory");
        return;
    }
    trial_context t = {.path = path, .note = note, .report = report};
    guard_result end = guard_run_long(trial_body, &t, seconds);
    report->reason[sizeof report->reason - 1] = '\0'; /* the plugin could write there */
    judge(&end, seconds, report, verdict);
    munmap(report, sizeof *report);
}

double trial_seconds(void)
{
    return environment_trial_seconds();
}
