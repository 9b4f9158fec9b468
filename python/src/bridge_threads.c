/* The pool of OpenMP that torch computes with, for the library's regions: two pools that wait on the same cores take
 * them away from each other. */
#include "bridge.h"

#include <dlfcn.h>
#include <link.h>
#include <string.h>

typedef void gomp_parallel(void (*body)(void *), void *data, unsigned threads, unsigned flags);

static gomp_parallel *parallel;
static int (*thread_number)(void), (*thread_count)(void);

typedef struct region {
    void (*body)(void *arg, int32_t index, int32_t count);
    void *arg;
} region;

static void work(void *data)
{
    const region *r = data;
    r->body(r->arg, thread_number(), thread_count());
}

static void run(void *context, int32_t threads, void (*body)(void *arg, int32_t index, int32_t count), void *arg)
{
    region r = {.body = body, .arg = arg};
    (void)context;
    parallel(work, &r, (unsigned)threads, 0);
}

/* The library that torch brought is not where names are looked up by default. */
static int look(struct dl_phdr_info *info, size_t size, void *found)
{
    const char *name = info->dlpi_name ? strrchr(info->dlpi_name, '/') : NULL;
    (void)size;
    if (!name ||
        (strncmp(name, "/libgomp", 8) != 0 && strncmp(name, "/libiomp", 8) != 0 && strncmp(name, "/libomp", 7) != 0))
        return 0;
    *(const char **)found = info->dlpi_name;
    return 1;
}

static bool find(void)
{
    const char *name = NULL;
    dl_iterate_phdr(look, (void *)&name);
    void *library = name ? dlopen(name, RTLD_LAZY | RTLD_NOLOAD) : NULL;
    if (!library)
        return false;
    gomp_parallel *entry = (gomp_parallel *)dlsym(library, "GOMP_parallel");
    thread_number = (int (*)(void))dlsym(library, "omp_get_thread_num");
    thread_count = (int (*)(void))dlsym(library, "omp_get_num_threads");
    if (thread_number && thread_count)
        parallel = entry;
    return parallel != NULL;
}

/* use_threads(width): regions run on that pool; 0: on the library's own. False: there is none. */
PyObject *bridge_use_threads(PyObject *module, PyObject *width)
{
    long threads = PyLong_AsLong(width);
    tn_error err = TN_ERROR_INIT;
    (void)module;
    if (PyErr_Occurred())
        return NULL;
    if (threads > 0 && !parallel && !find())
        return Py_NewRef(Py_False);
    const tn_team team = {.size = sizeof team, .width = (int32_t)threads, .run = run};
    tn_status status;
    Py_BEGIN_ALLOW_THREADS;
    status = tn_threads_use(threads > 0 ? &team : NULL, &err);
    Py_END_ALLOW_THREADS;
    if (status != TN_OK)
        return errors_raise(&err);
    return Py_NewRef(Py_True);
}
