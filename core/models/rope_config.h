/* Inside core: the rotary parameters of a config.json, in each form that files have. */
#ifndef TENON_CORE_ROPE_CONFIG_H
#define TENON_CORE_ROPE_CONFIG_H

#include "checkpoint/checkpoint.h"
#include "run/rope_tables.h"

/* Reads rope_parameters, or rope_scaling with rope_theta beside it, and makes the frequencies. dim: R; theta: where
 * the file has none. */
void rope_config_read(const config_reader *config, int64_t dim, double theta, rope_params *rope);

#endif
