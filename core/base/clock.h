/* Inside core: the one clock that durations are measured with. */
#ifndef TENON_CORE_CLOCK_H
#define TENON_CORE_CLOCK_H

/* Seconds since some moment; never runs backwards. Any thread, and after fork. */
double clock_seconds(void);

#endif
