/* Calls every public function with what it must refuse. The functions, their parameters and the members of structs are
 * read from the headers (calls.awk); values.c says what right calls have. Each call has one thing wrong, a parameter or
 * a member of a struct that it reads, is made in a child process, with an error record and without, and must come back:
 * without a crash, a hang or a finding of a sanitizer, and with a status, an error and a result that agree.
 *
 * Refused must be: NULL, but where the headers say what it means; a struct of size 0 or one that no version has; values
 * that an enumeration does not have, by functions that return a status. Who returns no status returns 0, NULL or what
 * the tables below say. */
#include "api.h"

#include "sanitizer.h"
#include "suite.h"

#include <check.h>
#include <math.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <tenon/tenon.h>
#include <unistd.h>

enum { SHOWN_MAX = 60 };

typedef union argument {
    unsigned char bytes[API_BYTES];
    void *pointer;
    const char *text;
    max_align_t aligned;
} argument;

/* What the child tells; shared. */
typedef struct answer {
    bool returned, has_error;
    tn_error err;
    argument result;
} answer;

/* What is wrong in a call: a parameter, or a member of the struct that it points to. */
typedef struct wrong {
    const api_function *function;
    size_t param;             /* function->count: nothing */
    const api_member *member; /* or NULL */
    argument value;
    char text[160]; /* of the value, for messages */
    bool refused;   /* must be */
    bool bare;      /* without an error record */
} wrong;

static answer *shared;
static size_t calls, faults;

/* ---- what the headers say ---------------------------------------------------------------------------------------- */

/* Where NULL means something, in any call or in those of one function. */
static const struct {
    const char *function, *param;
} may_be_null[] = {
    {NULL, "err"},
    {"tn_trainer_backward", "loss"},
    {"tn_trainer_evaluate", "loss"},
    {"tn_trainer_step", "norm"},
    {NULL, "ctx"},
    {NULL, "release_ctx"},
    {NULL, "release"},
    {NULL, "options"},
    {NULL, "config"},
    {NULL, "spec"},
    {NULL, "modules"},
    {NULL, "prefix"},
    {NULL, "device"},
    {NULL, "kernel"},
    {NULL, "grad_x"},
    {NULL, "grad_w"},
    {NULL, "data"},
    {"tn_check_plugin", "on_row"},
    {"tn_hub_folder", "revision"},
    {"tn_threads_use", "team"},
    {NULL, "context"},
    {"tn_check_replay", "plugin"},
    {"tn_cache_clear", "kind"},
    {"tn_cache_clear", "removed"},
    {"tn_cache_prune", "limits"},
    {"tn_cache_prune", "removed"},
    {"tn_config_load", "path"},
    {"tn_fail", "where"},
    {"tn_apply_kernels", "report"},
    {"tn_verify_kernels", "report"},
    {"tn_model_describe", "report"},
    {"tn_revert_kernel", "id"},
    {"tn_session_run", "outputs"},
    {"tn_embedder_prompt", "name"},
    {"tn_session_observe", "observer"},
    {"tn_generate", "result"},
    {"tn_engine_add", "id"},
    {"tn_engine_step", "more"},
    {"tn_generate_rows", "results"},
    {"tn_template_render", "length"},
    {"tn_tokenizer_decode", "length"},
    {"tn_tokenizer_bytes", "special"},
    {"tn_stream_push", "length"},
    {"tn_stream_flush", "length"},
    {"tn_parallel_ranks", "each"},
};

/* There the rule for all others holds. */
static const struct {
    const char *function, *param;
} must_not_be_null[] = {
    {"tn_config_set_kernels", "spec"},         {"tn_config_set_device", "device"},  {"tn_config_set_plugins", "config"},
    {"tn_config_add_plugins", "config"},       {"tn_config_set_kernels", "config"}, {"tn_config_set_device", "config"},
    {"tn_config_set_max_packed_mb", "config"}, {"tn_config_set_measure", "config"}, {"tn_config_set_exact", "config"},
    {"tn_config_set_same_bits", "config"},     {"tn_config_set_lock", "config"},
};

/* What a function without a status returns for what it cannot do. */
static const struct {
    const char *function;
    int64_t value;
} neutral[] = {
    {"tn_config_max_packed_mb", -1},
    {"tn_dataset_pack", -1},
};

/* Numbers that the callee can only believe: how many things are behind a pointer beside them, how far apart they lie;
 * and what is in structs that nobody but the library makes. most: there can be no more than this, which it must see. */
static const struct {
    const char *function, *name;
    int64_t most;
} believed[] = {
    {"tn_safetensors_write", "count", INT64_MAX},
    {"tn_tokenizer_decode", "count", INT64_MAX},
    {"tn_stop_text_new", "count", INT64_MAX},
    {"tn_nearest_name", "count", INT64_MAX},
    {"tn_model_borrow", "count", INT64_MAX},
    {"tn_grammar_new", "count", INT64_MAX},
    {"tn_vocabulary_new", "end_count", INT64_MAX},
    {"tn_media_images", "count", 4096},
    {"tn_media_files", "image_count", 4096},
    {"tn_media_files", "sound_count", 4096},
    {"tn_dataset_open", "count", INT64_MAX},
    {"tn_dataset_order", "count", INT64_MAX},
    {"tn_compare_text", "count", INT64_MAX},
    {"tn_compare_calls", "count", 65536},
    {"tn_plugin_called", "size", INT64_MAX},
    {"tn_ranks_share", "bytes", INT64_MAX},
    {NULL, "tn_tensor.stride", INT64_MAX},
    {NULL, "tn_tensor.stride[1]", INT64_MAX},
    {"tn_model_describe", "tn_report", INT64_MAX},
    {NULL, "in_count", TN_CALL_TENSORS},
    {NULL, "out_count", TN_CALL_TENSORS},
    {"tn_session_run", "tn_batch.tokens", VALUES_CONTEXT},
    {"tn_generate", "prompt_count", VALUES_CONTEXT},
    {"tn_engine_add", "prompt_count", INT64_MAX},
    {"tn_embed", "tn_batch.tokens", INT64_MAX},
    {"tn_embed", "tn_batch.rows", INT64_MAX},
    {"tn_generate_rows", "tn_batch.tokens", VALUES_CONTEXT},
};

/* Right calls that cannot be made here, and why. */
static const struct {
    const char *function, *why;
} not_right[] = {
    {"tn_check_replay", "there is no file of a call that was wrong"},
    {"tn_device_at", "no plugin brought a device"},
    {"tn_grammar_accept", "the id of a token that may come is the vocabulary's; check_grammar has it"},
    {"tn_compare_calls", "no kernel there promises the same bits"},
};

/* function NULL: of any. */
static bool names(const char *function, const char *name, const char *this_function, const char *this_name)
{
    return (!function || !strcmp(function, this_function)) && !strcmp(name, this_name);
}

static bool is_null_allowed(const char *function, const char *param)
{
    bool allowed = false;
    for (size_t i = 0; i < sizeof may_be_null / sizeof *may_be_null; i++)
        if (names(may_be_null[i].function, may_be_null[i].param, function, param))
            allowed = true;
    for (size_t i = 0; i < sizeof must_not_be_null / sizeof *must_not_be_null; i++)
        if (names(must_not_be_null[i].function, must_not_be_null[i].param, function, param))
            allowed = false;
    return allowed;
}

/* -1: none. */
static int64_t most_believed(const char *function, const char *name)
{
    for (size_t i = 0; i < sizeof believed / sizeof *believed; i++)
        if (names(believed[i].function, believed[i].name, function, name))
            return believed[i].most;
    return -1;
}

static bool is_right(const char *function)
{
    for (size_t i = 0; i < sizeof not_right / sizeof *not_right; i++)
        if (!strcmp(not_right[i].function, function))
            return false;
    return true;
}

/* ---- one call ---------------------------------------------------------------------------------------------------- */

static bool ends_in_length(const char *name)
{
    const char *end = strrchr(name, '_');
    return !strcmp(end ? end + 1 : name, "length");
}

/* The length of the text before it. */
static bool is_length_of_text(const api_function *f, size_t param)
{
    return param > 0 && f->params[param].kind == API_INTEGER && ends_in_length(f->params[param].name) &&
           f->params[param - 1].kind == API_STRING;
}

static bool is_error(const api_param *p)
{
    return !strcmp(p->base, "tn_error");
}

static void make_arguments(const wrong *w, argument *arguments)
{
    const api_function *f = w->function;
    for (size_t i = 0; i < f->count; i++)
        if (!values_make(f, i, &arguments[i])) {
            printf("no value is known for %s of %s, see tests/api/values*.c\n", f->params[i].name, f->name);
            _exit(1);
        }
    if (w->param < f->count && w->member)
        memcpy((char *)arguments[w->param].pointer + w->member->offset, &w->value, w->member->size);
    else if (w->param < f->count)
        memcpy(&arguments[w->param], &w->value, f->params[w->param].size);
    for (size_t i = 1; i < f->count; i++)
        if (is_length_of_text(f, i) && i != w->param) {
            size_t length = arguments[i - 1].text ? strlen(arguments[i - 1].text) : 4;
            memcpy(&arguments[i], &length, f->params[i].size);
        }
    for (size_t i = 0; i < f->count && w->bare; i++)
        if (is_error(&f->params[i]))
            arguments[i].pointer = NULL;
}

static void make_call(const wrong *w)
{
    const api_function *f = w->function;
    argument arguments[API_PARAMS] = {0};
    void *at[API_PARAMS];
    suite_limit_child();
    values_enter();
    make_arguments(w, arguments);
    for (size_t i = 0; i < f->count; i++)
        at[i] = &arguments[i];
    f->call(at, &shared->result);
    for (size_t i = 0; i < f->count; i++)
        if (is_error(&f->params[i]) && arguments[i].pointer) {
            shared->has_error = true;
            memcpy(&shared->err, arguments[i].pointer, sizeof shared->err);
        }
    shared->returned = true;
    _exit(0);
}

/* ---- judging ----------------------------------------------------------------------------------------------------- */

static bool is_neutral(const api_function *f, const argument *result)
{
    static const argument zeros;
    const char *text = result->text;
    if (f->kind == API_NONE) /* a tensor */
        return tn_tensor_count((const tn_tensor *)(const void *)result) == 0;
    if (f->kind == API_STRING)
        return !text || !text[0] || !strcmp(text, "?");
    for (size_t i = 0; i < sizeof neutral / sizeof *neutral; i++)
        if (!strcmp(neutral[i].function, f->name))
            return memcmp(result, &neutral[i].value, f->result_size) == 0;
    return memcmp(result, &zeros, f->result_size) == 0;
}

static bool is_refused(const api_function *f, const argument *result)
{
    tn_status status;
    memcpy(&status, result, sizeof status);
    return f->kind == API_VOID || (f->kind == API_STATUS ? status < 0 : is_neutral(f, result));
}

/* An error that says something, in one line, exactly where the call failed. */
static const char *disagreement(const api_function *f, const answer *a)
{
    tn_status status = TN_OK;
    memcpy(&status, &a->result, sizeof status);
    if (!a->has_error || !strcmp(f->name, "tn_fail") || !strcmp(f->name, "tn_error_clear"))
        return NULL;
    if (f->kind == API_STATUS && status != a->err.code)
        return "the status is not the error's";
    if ((f->kind == API_POINTER || f->kind == API_STRING) && !a->result.pointer != (a->err.code != TN_OK))
        return "a result and an error, or neither";
    if (a->err.code != TN_OK && (!a->err.message[0] || strchr(a->err.message, '\n')))
        return "an error without a message of one line";
    return NULL;
}

/* Was the struct's own error record what is wrong? Then it is not looked at. */
static const char *fault_in(const wrong *w, int status)
{
    static char text[64];
    if (WIFSIGNALED(status)) {
        snprintf(text, sizeof text, WTERMSIG(status) == SIGALRM ? "hangs" : "ends by signal %d", WTERMSIG(status));
        return text;
    }
    if (!shared->returned)
        return "ends the process";
    if (w->refused && !is_refused(w->function, &shared->result))
        return "is not refused";
    if (w->param == w->function->count && !is_right(w->function->name))
        return NULL;
    if (w->param == w->function->count && w->function->kind != API_VOID && w->function->kind != API_INTEGER &&
        w->function->kind != API_BOOL && w->function->kind != API_NONE) {
        tn_status result;
        memcpy(&result, &shared->result, sizeof result);
        if (w->function->kind == API_STATUS && result != TN_OK && strcmp(w->function->name, "tn_fail") != 0)
            return "a right call fails";
    }
    return disagreement(w->function, shared);
}

static void try_call(const wrong *w)
{
    const api_function *f = w->function;
    int status = 0;
    memset(shared, 0, sizeof *shared);
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0)
        make_call(w);
    waitpid(pid, &status, 0);
    const char *wrong = fault_in(w, status);
    calls++;
    faults += wrong != NULL;
    if (wrong && faults < SHOWN_MAX)
        printf("%s(%s%s%s%s)%s: %s%s%s\n", f->name, w->param < f->count ? f->params[w->param].name : "",
               w->member ? "." : "", w->member ? w->member->name : "", w->text, w->bare ? " without err" : "", wrong,
               shared->err.message[0] ? ": " : "", shared->err.message);
}

/* With an error record and, of parameters, without. */
static void try_both(wrong *w)
{
    try_call(w);
    for (size_t i = 0; i < w->function->count && !w->member; i++)
        if (is_error(&w->function->params[i]) && i != w->param) {
            w->bare = true;
            try_call(w);
            w->bare = false;
        }
}

/* ---- what is wrong ----------------------------------------------------------------------------------------------- */

static void try_value(wrong *w, const void *value, size_t size, const char *text)
{
    memset(&w->value, 0, sizeof w->value);
    memcpy(&w->value, value, size);
    snprintf(w->text, sizeof w->text, " = %s", text);
    try_both(w);
}

static void try_integers(wrong *w, const char *name, size_t size, bool is_unsigned)
{
    static const int64_t values[] = {0, -1, INT64_MIN, INT32_MIN, 7, 100, INT32_MAX, INT64_MAX};
    char text[32];
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        int64_t most = most_believed(w->function->name, name);
        bool positive = values[i] > 0 || (is_unsigned && values[i] < 0);
        bool any = most == INT64_MAX || (!w->member && is_length_of_text(w->function, w->param));
        if (any ? positive || w->member : values[i] > 0 && values[i] <= most)
            continue;
        snprintf(text, sizeof text, "%lld", (long long)values[i]);
        try_value(w, &values[i], size, text);
    }
}

static void try_enumerators(wrong *w, size_t size)
{
    static const int values[] = {-1, 1000, INT32_MAX, INT32_MIN};
    char text[32];
    w->refused = !w->member && w->function->kind == API_STATUS && strcmp(w->function->name, "tn_fail") != 0;
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        snprintf(text, sizeof text, "%d", values[i]);
        try_value(w, &values[i], size, text);
    }
    w->refused = false;
}

static void try_texts(wrong *w)
{
    static char large[100001];
    const struct {
        const char *value, *name;
    } values[] = {{"", "\"\""},
                  {large, "a long text"},
                  {"\xff\xc0\x80\xed\xa0\x80", "no UTF-8"},
                  {"\n\033[31m\t\r", "control characters"},
                  {"../../../..//", "folders"},
                  {"%s%n%d,,:;{}[]\"", "punctuation"}};
    memset(large, 'a', sizeof large - 1);
    for (size_t i = 0; i < sizeof values / sizeof *values; i++)
        if (!strchr(values[i].value, '%') || strcmp(w->function->name, "tn_fail") != 0)
            try_value(w, &values[i].value, sizeof values[i].value, values[i].name);
}

static void try_doubles(wrong *w)
{
    static const struct {
        double value;
        const char *name;
    } values[] = {{(double)NAN, "NaN"}, {(double)INFINITY, "inf"}, {-1, "-1"}, {1e308, "1e308"}, {0, "0"}};
    for (size_t i = 0; i < sizeof values / sizeof *values; i++)
        try_value(w, &values[i].value, sizeof values[i].value, values[i].name);
}

static void try_null(wrong *w)
{
    void *null = NULL;
    w->refused = !w->member && !is_null_allowed(w->function->name, w->function->params[w->param].name);
    try_value(w, &null, sizeof null, "NULL");
    w->refused = false;
}

static void try_kind(wrong *w, const char *name, api_kind kind, size_t size, bool is_unsigned)
{
    if (kind == API_INTEGER)
        try_integers(w, name, size, is_unsigned);
    if (kind == API_ENUM)
        try_enumerators(w, size);
    if (kind == API_DOUBLE)
        try_doubles(w);
    if (kind == API_STRING || kind == API_POINTER || kind == API_SIZED || kind == API_FUNCTION)
        try_null(w);
    if (kind == API_STRING)
        try_texts(w);
}

static void try_sizes(wrong *w)
{
    static const api_member size = {"", "size", 0, sizeof(uint32_t), API_INTEGER};
    static const uint32_t values[] = {0, 1, INT32_MAX, UINT32_MAX};
    char text[32];
    w->member = &size;
    w->refused = true;
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        snprintf(text, sizeof text, "%u", values[i]);
        try_value(w, &values[i], sizeof values[i], text);
    }
    w->refused = false;
    w->member = NULL;
}

/* Of a struct that the function reads. */
static void try_members(wrong *w, const api_param *p)
{
    size_t count;
    const api_member *all = api_members(&count);
    for (size_t i = 0; i < count; i++)
        if (strncmp(p->type, "const ", 6) == 0 && !strcmp(all[i].of, p->base) &&
            most_believed(w->function->name, p->base) < 0) {
            char name[128];
            snprintf(name, sizeof name, "%s.%s", all[i].of, all[i].name);
            w->member = &all[i];
            try_kind(w, name, all[i].kind, all[i].size, false);
        }
    w->member = NULL;
}

static void try_function(const api_function *f)
{
    wrong w = {.function = f, .param = f->count};
    try_both(&w);
    for (w.param = 0; w.param < f->count; w.param++) {
        const api_param *p = &f->params[w.param];
        try_kind(&w, p->name, p->kind, p->size, p->is_unsigned);
        if (p->kind == API_SIZED)
            try_sizes(&w);
        if (p->kind == API_SIZED || p->kind == API_POINTER)
            try_members(&w, p);
    }
}

/* ---- all of them ------------------------------------------------------------------------------------------------- */

START_TEST(what_is_exported_is_called)
{
    char line[256];
    size_t count, lines = 0;
    const api_function *all = api_functions(&count);
    FILE *file = fopen("tests/data/exports.txt", "re");
    while (file && fgets(line, sizeof line, file)) {
        bool found = false;
        line[strcspn(line, "\n")] = '\0';
        for (size_t i = 0; i < count; i++)
            found |= !strcmp(all[i].name, line);
        lines++;
        ck_assert_msg(found, "%s is exported, and in no header as calls.awk reads it", line);
    }
    ck_assert(file);
    fclose(file);
    ck_assert_uint_eq(lines, count);
}
END_TEST

START_TEST(a_function_refuses)
{
    size_t count;
    const api_function *f = &api_functions(&count)[_i];
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ck_assert(shared != MAP_FAILED);
    if (SANITIZER && !strcmp(f->name, "tn_check_plugin")) {
        printf("SKIPPED tn_check_plugin: under the sanitizers each call takes many seconds\n");
        return;
    }
    try_function(f);
    ck_assert_msg(faults == 0, "%s: %zu of %zu calls, see above", f->name, faults, calls);
}
END_TEST

int main(void)
{
    size_t count;
    TCase *all = suite_open("api", 0);
    api_functions(&count);
    tcase_add_unchecked_fixture(all, values_open, values_close);
    suite_add(all, what_is_exported_is_called);
    ADD_SLOW_LOOP(all, a_function_refuses, count);
    return suite_run();
}
