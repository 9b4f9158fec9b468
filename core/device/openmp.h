/* Inside core: OpenMP's threads in this process. */
#ifndef TENON_CORE_OPENMP_H
#define TENON_CORE_OPENMP_H

/* Ends the threads that run times of OpenMP keep for the calling thread; its next parallel region makes new ones.
 * Before a fork: in the child they would be waited for, and are not there. */
void openmp_rest(void);

#endif
