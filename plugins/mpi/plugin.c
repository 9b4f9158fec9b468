/* A group of ranks over MPI. What speaks MPI is a library of its own beside this one, mpi/open_mpi.so, so that programs
 * that compute alone do not load MPI. */
#include <tenon/group.h>

#define TN_ABI_NEEDED 5
#include <tenon/kernel.h>

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

static const tn_group_kind mpi;

/* The folder of this very file, for it may have been moved with the others. */
static tn_status open_group(tn_group *group, double patience, tn_error *err)
{
    static const char name[] = "mpi/open_mpi.so";
    char path[4096] = "";
    Dl_info own;
    if (!dladdr(&mpi, &own) || strlen(own.dli_fname) + sizeof name > sizeof path)
        return tn_fail(err, TN_E_KERNEL, "mpi", "cannot find its own folder");
    strcpy(path, own.dli_fname);
    char *slash = strrchr(path, '/');
    strcpy(slash ? slash + 1 : path, name);
    static void *library; /* MPI stays until the process ends                                              */
    library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    const char *why = library ? NULL : dlerror();
    if (!library)
        return tn_fail(err, TN_E_KERNEL, "mpi",
                       "%s; it is built where Open MPI is: install openmpi-bin and libopenmpi-dev, and build again",
                       why ? why : path);
    tn_status (*start)(tn_group *, double, tn_error *);
    *(void **)&start = dlsym(library, "tenon_mpi_open");
    return start ? start(group, patience, err) : tn_fail(err, TN_E_KERNEL, path, "it has no tenon_mpi_open");
}

static const tn_group_kind mpi = {
    .size = sizeof mpi, .name = "mpi", .summary = "ranks that mpirun started", .open = open_group};

TN_PLUGIN("mpi", "1.0.0", .group = &mpi);
