/* Inside core: how long plugins may keep the host waiting for answers (available, plan, a check), all together. */
#ifndef TENON_CORE_PATIENCE_H
#define TENON_CORE_PATIENCE_H

#include <stdbool.h>
#include <stddef.h>

/* Of the plugin in that file, by the name that its kernels are registered under: the seconds that its answers took so
 * far in this process, and the most that they may take: three times the limit of a trial. */
double patience_spent(const char *file);
double patience_most(void);

/* Its answers took so many more seconds. hang: what it did not answer within its limit, or NULL. That is remembered for
 * ten minutes, and so is that all its time is used up. */
void patience_spend(const char *file, double seconds, const char *hang);

/* Is nothing more to be asked of it? reason: why, and how to ask again. */
bool patience_gone(const char *file, char *reason, size_t size);

#endif
