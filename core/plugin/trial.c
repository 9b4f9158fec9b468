/* Opening a plugin in a child process first: what crashes, hangs or leaves does so there. The child uses dlopen itself,
 * which binds all symbols at once and says what is missing; libltdl reports every failure as "file not found".
 *
 * The child does to the plugin all that the host will do, to the end of the process: its constructors, reading what it
 * registers, a fork, its exit handlers and destructors. */
#include "plugin/trial.h"

#include "plugin/environment.h"
#include "device/confine.h"
#include "device/guard.h"
#include "device/tasks.h"
#include "plugin/conduct.h"
#include "plugin/descriptor.h"
#include "plugin/stage.h"
#include "plugin/writers.h"

#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

enum { TRIAL_GOOD = 0, TRIAL_REFUSED = 1, TRIAL_NOT_OPENED = 2 };

typedef enum trial_stage { OPENING, FORKING, LEAVING, LEFT } trial_stage;

typedef struct trial_report { /* shared with the child */
    volatile trial_stage stage;
    char reason[768];
    volatile bool all_named; /* names holds every library that came in                            */
    size_t name_count;
    char names[1 << 16];
} trial_report;

typedef struct trial_context {
    const char *path;
    const elfnote *note;
    trial_report *report;
    objects_loaded before;
    bool forks; /* a fork works before the plugin is there                                        */
    int result;
} trial_context;

/* ---- in the child ----------------------------------------------------------------------------------------------- */

/* A thread that the constructor left may be about to register. */
static void wait_for_threads(void)
{
    enum { OWN = 2, STEPS = 100 }; /* this one and the child's first; milliseconds                     */
    for (int i = 0; i < STEPS && tasks_count() > OWN && stage_late_count() == 0; i++)
        usleep(1000);
}

static tn_status check_registration(const trial_context *t, const stage *staged, tn_error *err)
{
    if (stage_late_count() > 0)
        return tn_fail(err, TN_E_KERNEL, NULL,
                       "it registers from a thread of its own; only the constructor of TN_PLUGIN registers");
    if (staged->count == 0)
        return tn_fail(err, TN_E_KERNEL, NULL,
                       "its constructor registers nothing with this host; link it with libtenon");
    if (staged->count > 1)
        return tn_fail(err, TN_E_KERNEL, NULL, "it registers %zu times; use TN_PLUGIN once per file", staged->count);
    descriptor_free(descriptor_read(staged->plugin, t->note, NULL, err));
    return err->code;
}

static bool fork_works(void)
{
    int status = 0;
    pid_t pid = fork();
    if (pid == 0)
        _exit(0);
    return pid < 0 || (waitpid(pid, &status, 0) == pid && status == 0);
}

/* Later trials and checks fork a process that has this library. */
static tn_status check_fork(const trial_context *t, tn_error *err)
{
    if (!t->forks)
        return TN_OK; /* the program has a handler that fails; nobody can say more                    */
    t->report->stage = FORKING;
    bool works = true;
    for (int i = 0; i < 3 && works; i++) /* a handler may count                                       */
        works = fork_works();
    if (!works)
        return tn_fail(err, TN_E_KERNEL, NULL,
                       "its handlers for forks (pthread_atfork) end the child of a fork, where kernels are checked");
    t->report->stage = OPENING;
    return TN_OK;
}

static void *open_and_read(void *arg)
{
    trial_context *t = arg;
    stage staged;
    stage_begin(&staged);
    void *handle = dlopen(t->path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE); /* the host keeps it, too */
    stage_end();
    if (!handle) {
        const char *why = dlerror();
        snprintf(t->report->reason, sizeof t->report->reason, "%s", why ? why : "no reason given");
        t->result = TRIAL_NOT_OPENED;
        return NULL;
    }
    wait_for_threads();
    tn_error err = TN_ERROR_INIT;
    if (check_registration(t, &staged, &err) == TN_OK && conduct_check(&err) == TN_OK)
        check_fork(t, &err);
    t->report->all_named =
        objects_new_names(&t->before, t->path, t->report->names, sizeof t->report->names, &t->report->name_count);
    snprintf(t->report->reason, sizeof t->report->reason, "%s", err.message);
    t->result = err.code == TN_OK ? TRIAL_GOOD : TRIAL_REFUSED;
    if (err.code == TN_OK)
        t->report->stage = LEAVING;
    return NULL;
}

/* Runs behind the plugin's exit handlers and before the guard's. */
static void end_libraries(int status, void *arg)
{
    trial_context *t = arg;
    if (t->report->stage != LEAVING || status != TRIAL_GOOD)
        return;
    objects_finish(&t->before);
    t->report->stage = LEFT;
}

static void *leave(void *arg)
{
    (void)arg;
    exit(TRIAL_GOOD);
}

/* Each part has a thread of its own: the end of the first runs what the plugin left there for that, and an exit on the
 * child's first thread would run what the program left on it. */
static int trial_body(void *ctx)
{
    trial_context *t = ctx;
    pthread_t thread;
    guard_close_from(STDERR_FILENO + 1);
    guard_limit_memory();
    confine_enter(CONFINE_TRIAL);
    conduct_begin();
    t->forks = fork_works();
    objects_look(&t->before);
    on_exit(end_libraries, t);
    t->result = TRIAL_REFUSED;
    snprintf(t->report->reason, sizeof t->report->reason, "its constructor ends the thread that opens it");
    if (pthread_create(&thread, NULL, open_and_read, t) != 0 || pthread_join(thread, NULL) != 0)
        snprintf(t->report->reason, sizeof t->report->reason, "could not be tried: no thread");
    if (t->report->stage == LEAVING && pthread_create(&thread, NULL, leave, t) == 0)
        pthread_join(thread, NULL);
    return t->result;
}

/* ---- in the host ------------------------------------------------------------------------------------------------ */

/* What a process does to itself, as far as a signal tells. The others may come from outside: someone who ends
 * processes, or a machine without memory. */
static bool is_own_signal(int s)
{
    static const int own[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT, SIGTRAP, SIGSYS, SIGXCPU};
    for (size_t i = 0; i < sizeof own / sizeof own[0]; i++)
        if (s == own[i])
            return true;
    return false;
}

/* A child that sat still may have waited for a lock that a thread of this program held when it forked, or for a busy
 * machine: only one that spun is worth remembering for long. */
static void judge_end(const guard_result *end, double seconds, const trial_report *report, trial_verdict *verdict)
{
    char how[256];
    bool tried = end->end != GUARD_FAILED && end->end != GUARD_UNSTARTED;
    const char *who = report->stage == FORKING   ? "its handlers for forks (pthread_atfork): it "
                      : report->stage == LEAVING ? "its exit handlers or destructors: it "
                                                 : "its constructor ";
    verdict->state = TN_PLUGIN_QUARANTINED;
    verdict->lasting = end->end == GUARD_EXITED || (end->end == GUARD_SIGNALLED && is_own_signal(end->value)) ||
                       end->end == GUARD_TIMEOUT;
    verdict->brief = end->end == GUARD_TIMEOUT && end->cpu_seconds <= 0.5 * seconds;
    guard_describe(end, seconds, how, sizeof how);
    snprintf(verdict->reason, sizeof verdict->reason, "%s%s%s", tried ? who : "", how,
             tried ? " when it was tried in a child process" : "");
}

static void judge(const guard_result *end, double seconds, const trial_report *report, trial_verdict *verdict)
{
    bool left = end->end == GUARD_EXITED && report->stage == LEFT && end->value == TRIAL_GOOD;
    if (end->end != GUARD_RETURNED && !left) {
        judge_end(end, seconds, report, verdict);
        return;
    }
    static const tn_plugin_state states[] = {TN_PLUGIN_LOADED, TN_PLUGIN_REFUSED, TN_PLUGIN_QUARANTINED};
    bool known = end->value >= TRIAL_GOOD && end->value <= TRIAL_NOT_OPENED && (left || end->value != TRIAL_GOOD);
    verdict->state = known ? states[end->value] : TN_PLUGIN_QUARANTINED;
    verdict->lasting = left;
    snprintf(verdict->reason, sizeof verdict->reason, "%s%.740s",
             end->value == TRIAL_NOT_OPENED ? "cannot be opened: " : "", report->reason);
}

/* The libraries that came in, each with who may write there. false: one of them is not to come in. */
static tn_status take_objects(const trial_report *report, bool named, trial_verdict *verdict, tn_error *err)
{
    const char *name = report->names, *end = report->names + sizeof report->names;
    tn_status status = TN_OK;
    verdict->lasting = verdict->lasting && report->all_named;
    for (size_t i = 0; i < report->name_count && name < end && status == TN_OK; i++, name += strlen(name) + 1) {
        if (name[0] != '/')
            return tn_fail(err, TN_E_KERNEL, NULL, "it loads '%s', which depends on the current folder", name);
        tn_error why = TN_ERROR_INIT;
        status = objects_add(&verdict->objects, name, &why);
        objects_file *file = status == TN_OK ? &verdict->objects.files[verdict->objects.count - 1] : NULL;
        if (status == TN_OK && !named)
            status = writers_check_library(name, &why);
        if (status == TN_OK && !objects_hash(file))
            status = tn_fail(&why, TN_E_KERNEL, name, "cannot be read, or changed meanwhile");
        if (status != TN_OK)
            tn_fail(err, TN_E_KERNEL, NULL, "it loads %s: %s", why.where, why.message);
    }
    return status;
}

void trial_run(const char *path, const elfnote *note, const needs *n, bool named, trial_verdict *verdict)
{
    double seconds = environment_trial_seconds();
    *verdict = (trial_verdict){.state = TN_PLUGIN_QUARANTINED};
    trial_report *report = mmap(NULL, sizeof *report, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (report == MAP_FAILED) {
        snprintf(verdict->reason, sizeof verdict->reason, "could not be tried: out of memory");
        return;
    }
    trial_context t = {.path = path, .note = note, .report = report};
    guard_result end = guard_run_long(trial_body, &t, seconds);
    report->reason[sizeof report->reason - 1] = '\0'; /* the plugin could write there */
    report->names[sizeof report->names - 1] = '\0';
    judge(&end, seconds, report, verdict);
    tn_error err = TN_ERROR_INIT;
    if (verdict->state != TN_PLUGIN_LOADED) {
        /* Which libraries came in is not known; one of them may be to blame. */
        verdict->lasting = verdict->lasting && n->found.count == 0 && !n->more;
    } else if (take_objects(report, named, verdict, &err) != TN_OK) {
        verdict->state = TN_PLUGIN_REFUSED;
        verdict->lasting = false;
        snprintf(verdict->reason, sizeof verdict->reason, "%s", err.message);
    }
    munmap(report, sizeof *report);
}

void trial_free(trial_verdict *verdict)
{
    objects_free(&verdict->objects);
}

const char *tn_trial_unfiltered(void)
{
    return confine_missing();
}
