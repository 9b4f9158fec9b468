/* Inside core: what the library put right by itself and whoever runs the program should know. */
#ifndef TENON_CORE_NOTICES_H
#define TENON_CORE_NOTICES_H

/* Keeps a line for tn_notice_get, once; beyond some hundred different ones nothing more is kept. */
void notices_add(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
