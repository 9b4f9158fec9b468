/* Walks over the failures of the system below: every command is run again and again, and each time another one of its
 * allocations, mappings, opens, reads, ... fails. Whatever happens, it must end by itself and in time, with a status
 * that fits and one line that says why, or as if nothing had happened: with the same output, byte for byte.
 * usage: test_faults [--all|--every] [--part I/N] [--fault KIND:N] [COMMAND [KIND]]
 * Without --all only a sample is tried; the lines say how many of how many. Of commands that say so (of_path) --all
 * takes a call or two of each path that leads to one; --every takes all of them. TENON_LSAN names LeakSanitizer's
 * library: with it nothing may be left behind, either, but for what tests/faults/leaks.supp allows. */
#include "faults.h"
#include "subjects.h"
#include "tempdir.h"

#include <fcntl.h>
#include <dirent.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { SECONDS_MAX = 300, SHOWN_MAX = 12, HUNG = 1000 };

/* Which exit statuses say what happened. Kernels that cannot be had for any reason are 3. */
static const struct {
    bool allowed[8];
} statuses[FAULT_KINDS] = {
    [FAULT_MALLOC] = {{[0] = true, [3] = true, [6] = true}},
    [FAULT_MMAP] = {{[0] = true, [3] = true, [6] = true}},
    [FAULT_MPROTECT] = {{[0] = true, [3] = true, [6] = true}},
    [FAULT_OPEN] = {{[0] = true, [3] = true, [4] = true, [6] = true}},
    [FAULT_READ] = {{[0] = true, [3] = true, [4] = true}},
    [FAULT_WRITE] = {{[0] = true, [1] = true, [4] = true}},
    [FAULT_STAT] = {{[0] = true, [3] = true, [4] = true}},
    [FAULT_FORK] = {{[0] = true, [3] = true, [6] = true}},
    [FAULT_THREAD] = {{[0] = true, [3] = true, [6] = true}},
};

/* ---- one run ------------------------------------------------------------------------------------------- */

typedef struct outcome {
    int status;             /* as a shell has it, or HUNG                                                           */
    char *out, *err, *file; /* file: what is in OUT, NULL when there is nothing                         */
    size_t out_size, err_size, file_size;
    size_t files;
    uint64_t counts[FAULT_KINDS];
} outcome;

static struct {
    char *folder, *results, *cache, *plugins, *tiny, *report, *paths, *preload;
    uint64_t (*hashes)[FAULT_PATHS_MAX]; /* the paths of the undisturbed run */
    int64_t part, parts;
    bool all, every, count;
    const char *fault, *leaks;
    size_t passed, failed;
} walk = {.parts = 1};

typedef enum manner { PLAINLY, NOTING_PATHS, THOROUGHLY } manner;

/* One call fails, or that one and all after it, as where a limit is reached. */
typedef enum form { ONCE, LASTING } form;

/* Where the program is: $TENON_BUILD, or the folder above that of this one. */
static const char *build_folder(void)
{
    static char folder[4096];
    const char *given = getenv("TENON_BUILD");
    ssize_t length = given ? 0 : readlink("/proc/self/exe", folder, sizeof folder - 1);
    for (int levels = 0; length > 0 && levels < 2; levels++)
        *strrchr(folder, '/') = '\0';
    return given ? given : folder;
}

static void outcome_free(outcome *o)
{
    free(o->out);
    free(o->err);
    free(o->file);
    *o = (outcome){0};
}

static char *contents(int fd, size_t *size)
{
    off_t end = lseek(fd, 0, SEEK_END);
    char *text = calloc(1, (size_t)end + 1);
    if (!text || pread(fd, text, (size_t)end, 0) != end)
        abort();
    *size = (size_t)end;
    close(fd);
    return text;
}

/* The text with the names of places in it replaced by their paths. */
static void put_places(const char *text, char *out, size_t size)
{
    const struct {
        const char *mark, *path;
    } places[] = {{"OUT", walk.results}, {"PLUGINS", walk.plugins}, {"TINY", walk.tiny}};
    snprintf(out, size, "%s", text);
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        const char *mark = strstr(text, places[i].mark);
        if (mark)
            snprintf(out, size, "%.*s%s%s", (int)(mark - text), text, places[i].path, mark + strlen(places[i].mark));
    }
}

/* Leaks are looked for with short stacks, which cost little, and told with whole ones, by which some are allowed. */
static void set_orders(const subject *s, const char *fault, manner how)
{
    static const char *const options[] = {
        [PLAINLY] = "malloc_context_size=2",
        [NOTING_PATHS] = "detect_leaks=0",
        [THOROUGHLY] = ("fast_unwind_on_malloc=0:malloc_context_size=60:print_suppressions=0:"
                        "suppressions=tests/faults/leaks.supp"),
    };
    char libraries[8400];
    snprintf(libraries, sizeof libraries, "%s %s", walk.preload, walk.leaks ? walk.leaks : "");
    setenv("LD_PRELOAD", libraries, 1);
    setenv("LSAN_OPTIONS", options[how], 1);
    setenv("TENON_FAULT_REPORT", walk.report, 1);
    if (how == NOTING_PATHS)
        setenv("TENON_FAULT_PATHS", walk.paths, 1);
    if (fault)
        setenv("TENON_FAULT", fault, 1);
    if (s->measures)
        setenv("TENON_MEASURE", "yes", 1);
    if (s->children)
        setenv("TENON_FAULT_CHILDREN", "yes", 1);
}

static void child(const subject *s, const char *fault, manner how, int out, int err)
{
    char program[4200];
    char words[WORDS_MAX][512], input[512];
    char *argv[WORDS_MAX + 2] = {program};
    snprintf(program, sizeof program, "%s/tenon", build_folder());
    for (size_t i = 0; i < WORDS_MAX && s->words[i]; i++) {
        put_places(s->words[i], words[i], sizeof words[i]);
        argv[i + 1] = words[i];
    }
    int in = open("/dev/null", O_RDONLY);
    if (s->input) {
        in = memfd_create("in", 0);
        put_places(s->input, input, sizeof input);
        if (pwrite(in, input, strlen(input), 0) < 0)
            _exit(127);
    }
    set_orders(s, fault, how);
    if (dup2(in, 0) == 0 && dup2(out, 1) == 1 && dup2(err, 2) == 2)
        execv(program, argv);
    _exit(127);
}

/* Ends what hangs. */
static int await_end(pid_t pid)
{
    int status = 0, handle = (int)syscall(SYS_pidfd_open, pid, 0);
    struct pollfd wait = {.fd = handle, .events = POLLIN};
    bool hung = poll(&wait, 1, SECONDS_MAX * 1000) == 0;
    if (hung)
        kill(pid, SIGKILL);
    close(handle);
    waitpid(pid, &status, 0);
    return hung ? HUNG : WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* Takes what the run left in OUT and empties it. */
static void take_results(outcome *o)
{
    DIR *list = opendir(walk.results);
    for (struct dirent *entry; list && (entry = readdir(list));) {
        if (entry->d_name[0] == '.')
            continue;
        char *path = tempdir_path(walk.results, entry->d_name);
        free(o->file);
        o->file = tempdir_read(path, &o->file_size);
        o->files++;
        unlink(path);
        free(path);
    }
    if (list)
        closedir(list);
}

static outcome run(const subject *s, const char *fault, manner how)
{
    static const uint64_t zeros[FAULT_KINDS];
    outcome o = {0};
    size_t size;
    if (s->cold) {
        char *command;
        if (asprintf(&command, "rm -rf '%s'", walk.cache) < 0 || system(command) != 0)
            abort();
        free(command);
        mkdir(walk.cache, 0700);
    }
    tempdir_write(walk.report, zeros, sizeof zeros);
    int out = memfd_create("out", MFD_CLOEXEC), err = memfd_create("err", MFD_CLOEXEC);
    pid_t pid = fork();
    if (pid == 0)
        child(s, fault, how, out, err);
    o.status = await_end(pid);
    o.out = contents(out, &o.out_size);
    o.err = contents(err, &o.err_size);
    uint64_t *counts = tempdir_read(walk.report, &size);
    memcpy(o.counts, counts, sizeof o.counts);
    free(counts);
    take_results(&o);
    return o;
}

/* ---- judging ------------------------------------------------------------------------------------------- */

static bool same(const char *a, size_t a_size, const char *b, size_t b_size)
{
    return !a == !b && a_size == b_size && (!a || memcmp(a, b, a_size) == 0);
}

/* How much of its output is to be the same each time. */
static size_t compared(const subject *s, const outcome *o)
{
    if (s->varies)
        return 0;
    const char *end = s->timed ? strstr(o->out, "\"timings\"") : NULL;
    return end ? (size_t)(end - o->out) : o->out_size;
}

/* Exactly one line that begins with "tenon: " and is no warning, and it is the last. */
static bool one_line(const char *text)
{
    size_t errors = 0;
    bool last = false;
    for (const char *line = text; *line; line++) {
        last = strncmp(line, "tenon: ", 7) == 0 && strncmp(line, "tenon: warning: ", 16) != 0;
        errors += last;
        line = strchr(line, '\n');
        if (!line)
            return false;
    }
    return errors == 1 && last;
}

/* NULL, or what is wrong with how it ended. */
static const char *fault_in(const subject *s, const outcome *o, const outcome *usual, fault_kind kind)
{
    if (o->status == HUNG)
        return "did not end";
    if (strstr(o->err, "Sanitizer"))
        return "the sanitizers found something";
    if (o->status == 0 || o->status == usual->status) {
        size_t out = compared(s, o), usual_out = compared(s, usual);
        /* A model whose tokenizer is broken runs on ids, and says so; memory is no reason. */
        if (kind != FAULT_MALLOC && kind != FAULT_MMAP && strstr(o->err, "(printing token ids)"))
            return NULL;
        /* Whether plugins would be confined was asked in a process; that it could not be is told.         */
        if (strstr(o->out, "could not be tried: no process can be started"))
            return NULL;
        if (!same(o->out, out, usual->out, usual_out))
            return "ended well with another output";
        if (!same(o->file, o->file_size, usual->file, usual->file_size) || o->files != usual->files)
            return "ended well with another file";
        return NULL;
    }
    bool untried = s->varies && o->status == 5; /* verify: what could not be tried counts as failed   */
    if (!untried && (o->status >= 8 || !statuses[kind].allowed[o->status]))
        return "a status that does not fit";
    bool whole = same(o->file, o->file_size, usual->file, usual->file_size) && o->files == usual->files;
    if (o->files && !whole) /* one that is whole may be there: what failed is what was said of it          */
        return "left a part of a file";
    return one_line(o->err) ? NULL : "not one line on stderr";
}

static void show(const char *text)
{
    for (int lines = 0; *text && lines < 12; lines++) {
        size_t length = strcspn(text, "\n");
        printf("        %.*s\n", (int)(length < 300 ? length : 300), text);
        text += length + (text[length] == '\n');
    }
}

/* What docs/testing.md says of what remains: ends that are not ours to prevent. */
static bool is_known(const outcome *o)
{
    return o->status == 1 && strstr(o->err, "libgomp: Out of memory allocating");
}

static bool try_one(const subject *s, const outcome *usual, fault_kind kind, uint64_t number, form how, bool tell)
{
    char fault[64];
    snprintf(fault, sizeof fault, "%s:%llu%s", fault_names[kind], (unsigned long long)number,
             how == LASTING ? "+" : "");
    outcome o = run(s, fault, PLAINLY);
    if (walk.leaks && strstr(o.err, "Sanitizer")) {
        outcome_free(&o);
        o = run(s, fault, THOROUGHLY);
    }
    const char *wrong = fault_in(s, &o, usual, kind);
    if (wrong && is_known(&o)) {
        printf("    %s %s: known, see docs/testing.md\n", s->name, fault);
        wrong = NULL;
    }
    if (wrong && tell) {
        printf("    %s %s: %s, status %d\n", s->name, fault, wrong, o.status);
        show(o.err);
    }
    outcome_free(&o);
    return !wrong;
}

typedef struct call {
    uint64_t path, number;
} call;

static int by_path(const void *a, const void *b)
{
    const call *x = a, *y = b;
    return x->path != y->path ? (x->path > y->path) - (x->path < y->path)
                              : (x->number > y->number) - (x->number < y->number);
}

static int by_number(const void *a, const void *b)
{
    const call *x = a, *y = b;
    return (x->number > y->number) - (x->number < y->number);
}

/* Leaves the first call of each path and, of two, the last one as well. Returns how many are left. */
static uint64_t choose_by_path(call *calls, uint64_t count, int of_path)
{
    uint64_t kept = 0;
    qsort(calls, count, sizeof *calls, by_path);
    for (uint64_t i = 0; i < count; i++) {
        bool first = i == 0 || calls[i - 1].path != calls[i].path;
        bool last = i + 1 == count || calls[i + 1].path != calls[i].path;
        if (first || (last && of_path > 1))
            calls[kept++] = calls[i];
    }
    qsort(calls, kept, sizeof *calls, by_number);
    return kept;
}

/* How many points of a kind are tried in a sample. There are few forks, and each decides something else. */
static int64_t sampled(const subject *s, fault_kind kind, form how)
{
    enum { LASTING_SAMPLE = 3 };
    if (kind == FAULT_FORK)
        return INT64_MAX;
    if (how == LASTING && s->sample[kind] != 0)
        return LASTING_SAMPLE;
    return s->sample[kind] < 0 ? INT64_MAX : s->sample[kind];
}

/* The points of one kind: all, those of each path, or evenly spread, the first and the last among them. Owned. */
static call *choose_points(const subject *s, fault_kind kind, form how, uint64_t count, uint64_t *points)
{
    int64_t most = walk.all ? INT64_MAX : sampled(s, kind, how);
    *points = (uint64_t)most < count ? (uint64_t)most : count;
    bool paths = walk.all && !walk.every && s->of_path && count <= FAULT_PATHS_MAX;
    call *calls = calloc(count + 1, sizeof *calls);
    for (uint64_t i = 0; calls && i < *points; i++) {
        calls[i].number = *points == count ? i + 1 : *points == 1 ? 1 : 1 + i * (count - 1) / (*points - 1);
        calls[i].path = walk.hashes[kind][i];
    }
    if (!calls)
        abort();
    if (paths)
        *points = choose_by_path(calls, count, s->of_path);
    return calls;
}

static void walk_kind(const subject *s, const outcome *usual, fault_kind kind, form how)
{
    uint64_t count = usual->counts[kind], fell = 0, tried = 0, points;
    time_t began = time(NULL);
    call *calls = choose_points(s, kind, how, count, &points);
    for (uint64_t i = (uint64_t)walk.part; i < points; i += (uint64_t)walk.parts) {
        tried++;
        fell += !try_one(s, usual, kind, calls[i].number, how, fell < SHOWN_MAX);
    }
    free(calls);
    if (tried)
        printf("%-22s %-8s%s %6llu points of %6llu tried, %llu fell, %ld s\n", s->name, fault_names[kind],
               how == LASTING ? "+" : " ", (unsigned long long)tried, (unsigned long long)count,
               (unsigned long long)fell, (long)(time(NULL) - began));
    walk.passed += tried - fell;
    walk.failed += fell;
    fflush(stdout);
}

static void walk_subject(const subject *s, const char *kind)
{
    outcome usual = run(s, NULL, PLAINLY);
    if (!s->cold) { /* now the cache is warm */
        outcome_free(&usual);
        usual = run(s, NULL, PLAINLY);
    }
    if (walk.all && s->of_path) {
        outcome noted = run(s, NULL, NOTING_PATHS);
        outcome_free(&noted);
    }
    if (usual.status != 0) {
        printf("%s: ends with status %d undisturbed\n", s->name, usual.status);
        show(usual.err);
        walk.failed++;
    }
    for (int k = 0; k < FAULT_KINDS && usual.status == 0 && walk.count; k++)
        printf("%s %s %llu\n", s->name, fault_names[k], (unsigned long long)usual.counts[k]);
    for (int k = 0; k < FAULT_KINDS && usual.status == 0 && !walk.count; k++)
        for (form how = ONCE; how <= LASTING && (!kind || strcmp(kind, fault_names[k]) == 0); how++)
            walk_kind(s, &usual, (fault_kind)k, how);
    outcome_free(&usual);
}

/* One fault by itself, and all that it said. */
static void show_one(const subject *s, const char *fault)
{
    outcome o = run(s, fault, THOROUGHLY);
    printf("%s %s: status %d\n%s%s", s->name, fault, o.status, o.out, o.err);
    outcome_free(&o);
}

/* ---- the places ------------------------------------------------------------------------------------------ */

static void copy_file(const char *from, const char *folder, const char *name)
{
    char *to = tempdir_path(folder, name);
    tempdir_copy_file(from, folder, name);
    chmod(to, 0644); /* plugins that others can write to are not taken */
    free(to);
}

static void copy_plugin(const char *name)
{
    char from[4300];
    snprintf(from, sizeof from, "%s/plugins/%s", build_folder(), name);
    copy_file(from, walk.plugins, name);
}

static void make_tiny(void)
{
    static const char messages[] = "[{\"role\": \"system\", \"content\": \"Be brief.\"},\n"
                                   " {\"role\": \"user\", \"content\": \"And it?\"}]\n";
    char *command;
    walk.tiny = tempdir_path(walk.folder, "tiny");
    if (asprintf(&command, "'%s/tests/make_checkpoint' --config tests/faults/tiny.json '%s' --dtype f32 >/dev/null",
                 build_folder(), walk.tiny) < 0 ||
        system(command) != 0)
        abort();
    free(command);
    copy_file(DEMO "/tokenizer.json", walk.tiny, "tokenizer.json");
    copy_file(DEMO "/tokenizer_config.json", walk.tiny, "tokenizer_config.json");
    copy_file("tests/data/templates/qwen2.5/template.jinja", walk.tiny, "chat_template.jinja");
    tempdir_put(walk.tiny, "messages.json", messages);
}

static void make_lock(void)
{
    char *command;
    if (asprintf(&command, "LD_PRELOAD='%s' '%s/tenon' lock '%s' --only-plugins '%s' >'%s/tiny.lock'", walk.preload,
                 build_folder(), walk.tiny, walk.plugins, walk.tiny) < 0 ||
        system(command) != 0)
        abort();
    free(command);
}

/* A file with room for the paths of all kinds, which takes no more than what is written to it. */
static void map_paths(void)
{
    const size_t size = sizeof *walk.hashes * FAULT_KINDS;
    walk.paths = tempdir_path(walk.folder, "paths");
    int file = open(walk.paths, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (file < 0 || ftruncate(file, (off_t)size) != 0)
        abort();
    void *data = mmap(NULL, size, PROT_READ, MAP_SHARED, file, 0);
    close(file);
    if (data == MAP_FAILED)
        abort();
    walk.hashes = data;
}

static void make_places(void)
{
    char preload[4300];
    walk.folder = tempdir_new();
    walk.results = tempdir_path(walk.folder, "results");
    walk.cache = tempdir_path(walk.folder, "cache");
    walk.plugins = tempdir_path(walk.folder, "plugins");
    walk.report = tempdir_path(walk.folder, "report");
    mkdir(walk.results, 0755);
    mkdir(walk.cache, 0700);
    mkdir(walk.plugins, 0755);
    setenv("HOME", walk.folder, 1);
    setenv("XDG_CONFIG_HOME", walk.folder, 1);
    setenv("XDG_CACHE_HOME", walk.cache, 1);
    setenv("TENON_MEASURE", "no", 1);
    unsetenv("TENON_CONFIG");
    snprintf(preload, sizeof preload, "%s/tests/fault_preload.so", build_folder());
    walk.preload = strdup(preload);
    copy_plugin("npu_rmsnorm.so");
    copy_plugin("npu_swiglu.so");
    make_tiny();
    make_lock();
    map_paths();
}

static void remove_places(void)
{
    char *const names[] = {walk.results, walk.cache, walk.plugins, walk.tiny, walk.report, walk.paths, walk.preload};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        free(names[i]);
    tempdir_remove(walk.folder);
}

/* It looks at a process by means that some machines forbid. */
static void find_leak_checker(void)
{
    const char *library = getenv("TENON_LSAN");
    walk.leaks = library && library[0] ? library : NULL;
    outcome o = run(&subjects[0], NULL, PLAINLY);
    if (!walk.leaks || o.err[0] || o.status != 0) {
        printf("SKIPPED leaks: %s\n",
               walk.leaks ? "LeakSanitizer does not work here" : "TENON_LSAN does not name LeakSanitizer's library");
        walk.leaks = NULL;
    }
    outcome_free(&o);
}

int main(int argc, char **argv)
{
    int at = 1;
    for (; at < argc && strncmp(argv[at], "--", 2) == 0; at++) {
        if (strcmp(argv[at], "--all") == 0)
            walk.all = true;
        else if (strcmp(argv[at], "--every") == 0)
            walk.all = walk.every = true;
        else if (strcmp(argv[at], "--count") == 0)
            walk.count = true;
        else if (strcmp(argv[at], "--part") == 0 && at + 1 < argc)
            sscanf(argv[++at], "%ld/%ld", &walk.part, &walk.parts);
        else if (strcmp(argv[at], "--fault") == 0 && at + 1 < argc)
            walk.fault = argv[++at];
    }
    make_places();
    find_leak_checker();
    for (size_t i = 0; i < sizeof subjects / sizeof *subjects; i++)
        if (at >= argc || strcmp(argv[at], subjects[i].name) == 0) {
            if (walk.fault)
                show_one(&subjects[i], walk.fault);
            else
                walk_subject(&subjects[i], at + 1 < argc ? argv[at + 1] : NULL);
        }
    remove_places();
    printf("%zu passed, %zu failed\n", walk.passed, walk.failed);
    return walk.failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
