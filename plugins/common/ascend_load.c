/* CANN's libraries, found and looked up once. Nothing here is linked against an installation: a machine without one
 * gets the reason. Libraries stay loaded, since the vendor's threads and exit handlers live in them. */
#include "acl_types.h"
#include "ascend.h"

#include <dirent.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LIBRARIES_MAX = 32, PATH_BYTES = 1024 };
#define GET_CANN "install CANN or source its set_env.sh"

/* What is looked up: the names, and where the addresses go. Operators have a first phase, and what their row says. */
enum { ANY_CHIP, A2_A3 };
typedef struct wanted {
    const char *name, *first_name, *types;
    size_t at, first_at;
    int chips;
    bool optional;
} wanted;

#define ONE(function) {.name = #function, .at = offsetof(ascend_api, function)},
#define NEEDED false
#define OPTIONAL true
#define NEWER true
#define ACL_OP(operator, need, on, known, combinations, strides, arguments)                                            \
    {.name = #operator,                                                                                                \
     .first_name = #operator"GetWorkspaceSize",                                                                        \
     .types = combinations,                                                                                            \
     .at = offsetof(ascend_api, operator),                                                                             \
     .first_at = offsetof(ascend_api, operator##GetWorkspaceSize),                                                     \
     .chips = on,                                                                                                      \
     .optional = need},
static const wanted runtime[] = {ASCEND_RUNTIME(ONE)};
static const wanted objects[] = {ASCEND_OBJECTS(ONE)}, repeating[] = {ASCEND_REPEATING(ONE)};
static const wanted capturing[] = {ASCEND_CAPTURING(ONE)};
static const wanted operators[] = {
#include "acl_ops.def"
};

#define COUNT(array) (sizeof(array) / sizeof *(array))

static struct {
    pthread_once_t once;
    ascend_api api;
    tn_error err; /* why there is none                                                            */
    /* The libraries of operators, in the order in which they are searched. */
    void *libraries[LIBRARIES_MAX];
    size_t count;
} loaded = {.once = PTHREAD_ONCE_INIT, .err = TN_ERROR_INIT};

/* ---- libraries -------------------------------------------------------------------------------------------- */

/* The folder of the installation, or NULL where the environment names none. */
static const char *home(void)
{
    const char *path = getenv("ASCEND_HOME_PATH");
    if (!path || !path[0])
        path = getenv("ASCEND_TOOLKIT_HOME");
    return path && path[0] ? path : NULL;
}

/* What the loader says where a library is there and cannot be loaded (something that it needs is missing) goes to why,
 * unless that has something already. */
static void *open_path(const char *path, const char *name, char *why, size_t size)
{
    void *library = dlopen(path, RTLD_LAZY | RTLD_LOCAL);
    const char *said = library ? NULL : dlerror();
    if (said && !why[0] && strncmp(said, path, strlen(path)) != 0)
        snprintf(why, size, "%.100s cannot be loaded: %.300s", name, said);
    else if (said && !why[0] && !strstr(said, "No such file"))
        snprintf(why, size, "%s", said);
    return library;
}

/* By the loader's own path, then in the folder of the installation. */
static void *open_library(const char *name, char *why, size_t size)
{
    char path[PATH_BYTES];
    void *library = open_path(name, name, why, size);
    if (!library && home() && (size_t)snprintf(path, sizeof path, "%s/lib64/%s", home(), name) < sizeof path)
        library = open_path(path, name, why, size);
    return library;
}

static bool keep(void *library)
{
    if (library && loaded.count < LIBRARIES_MAX)
        loaded.libraries[loaded.count++] = library;
    return library != NULL;
}

/* Operators that users built: of each folder of the list, in its usual place or in the folder itself. */
static void open_custom(void)
{
    char list[4 * PATH_BYTES], path[5 * PATH_BYTES], why[PATH_BYTES], *rest = NULL;
    const char *named = getenv("ASCEND_CUSTOM_OPP_PATH");
    if (!named || (size_t)snprintf(list, sizeof list, "%s", named) >= sizeof list)
        return;
    for (char *folder = strtok_r(list, ":", &rest); folder; folder = strtok_r(NULL, ":", &rest)) {
        why[0] = '\0';
        snprintf(path, sizeof path, "%s/op_api/lib/libcust_opapi.so", folder);
        if (keep(open_path(path, "libcust_opapi.so", why, sizeof why)))
            continue;
        snprintf(path, sizeof path, "%s/libcust_opapi.so", folder);
        keep(open_path(path, "libcust_opapi.so", why, sizeof why));
    }
}

/* The libraries that libopapi.so was split into; true when there is one. */
static bool open_split(char *why, size_t size)
{
    char path[PATH_BYTES];
    bool any = false;
    if (!home() || (size_t)snprintf(path, sizeof path, "%s/lib64", home()) >= sizeof path)
        return false;
    DIR *folder = opendir(path);
    for (struct dirent *entry = folder ? readdir(folder) : NULL; entry; entry = readdir(folder)) {
        size_t length = strlen(entry->d_name);
        if (strncmp(entry->d_name, "libopapi_", 9) != 0 || length < 3 || strcmp(entry->d_name + length - 3, ".so") != 0)
            continue;
        if ((size_t)snprintf(path, sizeof path, "%s/lib64/%s", home(), entry->d_name) < sizeof path)
            any |= keep(open_path(path, entry->d_name, why, size));
    }
    if (folder)
        closedir(folder);
    return any;
}

static tn_status not_found(const char *what, const char *why)
{
    if (why[0])
        return tn_fail(&loaded.err, TN_E_KERNEL, "npu", "%s; " GET_CANN, why);
    return tn_fail(&loaded.err, TN_E_KERNEL, "npu", "%s was not found; " GET_CANN, what);
}

/* ---- functions -------------------------------------------------------------------------------------------- */

/* Into a field of the table. Functions and data have addresses of one size wherever there is dlsym. */
static bool store(void *library, const char *name, size_t at)
{
    void *address = dlsym(library, name);
    memcpy((char *)&loaded.api + at, &address, sizeof address);
    return address != NULL;
}

static tn_status look_up(void *library, void *other, const wanted *list, size_t count, const char *what)
{
    for (size_t i = 0; i < count; i++)
        if (!store(library, list[i].name, list[i].at) && !(other && store(other, list[i].name, list[i].at)))
            return tn_fail(&loaded.err, TN_E_KERNEL, "npu", "%s has no %s; install CANN 8.1.RC1 or newer", what,
                           list[i].name);
    return TN_OK;
}

/* Both phases of an operator come from one library. */
static bool look_up_both(const wanted *w)
{
    for (size_t i = 0; i < loaded.count; i++)
        if (store(loaded.libraries[i], w->name, w->at) && store(loaded.libraries[i], w->first_name, w->first_at))
            return true;
    memset((char *)&loaded.api + w->at, 0, sizeof(void *));
    memset((char *)&loaded.api + w->first_at, 0, sizeof(void *));
    return w->optional;
}

static tn_status look_up_operators(void)
{
    for (size_t i = 0; i < COUNT(operators); i++)
        if (!look_up_both(&operators[i]))
            return tn_fail(&loaded.err, TN_E_KERNEL, "npu",
                           "the libraries of operators have no %s; install CANN 8.1.RC1 or newer, with its kernels",
                           operators[i].name);
    return TN_OK;
}

/* ---- both --------------------------------------------------------------------------------------------------- */

static tn_status load(void)
{
    char why[512] = "";
    void *acl = open_library("libascendcl.so", why, sizeof why);
    if (!acl)
        acl = open_library("libacl_rt.so", why, sizeof why);
    if (!acl)
        return not_found("libascendcl.so", why);
    void *base = open_library("libnnopbase.so", why, sizeof why);
    if (!base)
        return not_found("libnnopbase.so", why);
    open_custom();
    /* Never both: an installation that is split may still have the old library, for another generation. */
    if (!keep(open_library("libopapi.so", why, sizeof why)) && !open_split(why, sizeof why))
        return not_found("libopapi.so", why);
    tn_status status = look_up(acl, NULL, runtime, COUNT(runtime), "libascendcl.so");
    if (status == TN_OK)
        status = look_up(base, loaded.libraries[loaded.count - 1], objects, COUNT(objects), "libnnopbase.so");
    for (size_t i = 0; i < COUNT(repeating); i++)
        if (!store(base, repeating[i].name, repeating[i].at))
            store(loaded.libraries[loaded.count - 1], repeating[i].name, repeating[i].at);
    for (size_t i = 0; i < COUNT(capturing); i++)
        store(acl, capturing[i].name, capturing[i].at);
    return status == TN_OK ? look_up_operators() : status;
}

static void load_once(void)
{
    load();
}

const ascend_api *ascend_load(tn_error *err)
{
    pthread_once(&loaded.once, load_once);
    if (loaded.err.code == TN_OK)
        return &loaded.api;
    tn_fail(err, loaded.err.code, loaded.err.where, "%s", loaded.err.message);
    return NULL;
}

/* The operator's row, where it is here and for this chip. */
static const wanted *find(const char *name)
{
    const ascend_api *api = ascend_load(NULL);
    const char *soc = api ? api->aclrtGetSocName() : NULL;
    void *address = NULL;
    for (const wanted *w = operators; api && w < operators + COUNT(operators); w++)
        if (strcmp(w->name, name) == 0) {
            memcpy(&address, (const char *)api + w->at, sizeof address);
            return address && !(w->chips == A2_A3 && soc && ascend_chip_of(soc) == ASCEND_310P) ? w : NULL;
        }
    return NULL;
}

bool ascend_has(const char *name)
{
    return find(name) != NULL;
}

bool ascend_takes(const char *name, const tn_dtype *types, int count)
{
    const wanted *w = find(name);
    char letters[16] = "";
    for (int i = 0; i < count; i++)
        letters[i] = acl_letter(ascend_dtype(types[i]));
    return w && acl_types_fit(w->types, letters, count);
}
