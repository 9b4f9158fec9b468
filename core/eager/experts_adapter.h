/* Inside core/eager: what an adapter adds to the products of experts, and its gradients: all in f32. */
#ifndef TENON_CORE_EAGER_EXPERTS_ADAPTER_H
#define TENON_CORE_EAGER_EXPERTS_ADAPTER_H

#include "eager/moe_experts.h"

/* Takes its part of the scratch (base NULL: adds its size); nothing where the site has no adapter. backward: room for
 * gradients, too. */
void experts_adapter_layout(experts_job *e, char *base, size_t *used, bool backward);

/* Fills what is beside gate and up, from gathered, or beside down, from activated. */
void experts_adapter_gate_up(const experts_job *e);
void experts_adapter_down(const experts_job *e);

/* The same way back. From upstream (of what down gave, in type): gradients of down's factors, and what is added to
 * those of activated, beside.gate_up with inter columns. From the gradients of gate and up, in their places: those of
 * their factors, and what is added to those of gathered, beside.down. */
void experts_adapter_down_grads(const experts_job *e, const tn_grads *grads, const char *upstream);
void experts_adapter_gate_up_grads(const experts_job *e, const tn_grads *grads);

#endif
