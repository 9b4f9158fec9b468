/* Inside core/run: the parts that compositions of eager operations, forward and backward, are written with. */
#ifndef TENON_CORE_COMPOSE_H
#define TENON_CORE_COMPOSE_H

#include "run/run.h"

/* What a composition works with. parts NULL: every step is eager, its parameters taken from the outer site. The first
 * error sticks: after it the functions below do nothing. */
typedef struct composer {
    const device *device;
    arena *arena;
    graph_site *const *parts;
    const tn_call *call;
    tn_error *err;
    tn_status status;
} composer;

#define COMPOSE_NO_ROLE TN_ROLE_MAX

/* compose_steps.c: a dense tensor [rows, width] from the arena: of a type, or of that of the input. */
tn_tensor compose_take_as(composer *c, tn_dtype dtype, int64_t rows, int64_t width);
tn_tensor compose_take(composer *c, int64_t rows, int64_t width);

/* compose.c: a product with these parameters of the outer site, as a site of its own. bias may be COMPOSE_NO_ROLE. */
tn_site compose_linear_site(const composer *c, tn_role weight, tn_role bias, int64_t in, int64_t out);

/* compose.c: y = x weight^T + bias, through the part's own site where there is one. */
void compose_linear(composer *c, int part, tn_role weight, tn_role bias, const tn_tensor *x, const tn_tensor *y);

/* compose.c: through the part's site and its kernel, where there is one; else eagerly, with a site that holds the same
 * meaning. */
void compose_part(composer *c, int part, const tn_site *otherwise, tn_call *call);

/* compose_steps.c: a primitive operation by the device; site says which act or the like. */
void compose_eagerly(composer *c, tn_op op, const tn_site *site, run_tensors in, run_tensors out);

/* compose_steps.c: out = a + b; may alias. */
void compose_add(composer *c, const tn_tensor *a, const tn_tensor *b, const tn_tensor *out);

/* compose.c: gate and up of an MLP as views of both, which holds 2 inter columns for every token: two dense halves or
 * the halves of each row, by layout. */
void compose_gate_up_views(const tn_site *site, const tn_tensor *both, tn_tensor *gate, tn_tensor *up);

/* compose.c: both = the products that an MLP's activation is applied to. */
void compose_gate_up(composer *c, const tn_tensor *both);

/* compose.c: the shared expert of a MOE_BLOCK as an MLP of its own. */
tn_site compose_shared_site(const tn_site *block);

/* backward.c: the gradients of a product with these parameters of the outer site, by the part's kernel where there is
 * one: of x into dx (data NULL: not wanted), of the parameters into what c->call->grads names under the same roles. */
void compose_linear_backward(composer *c, int part, tn_role weight, tn_role bias, const tn_tensor *x,
                             const tn_tensor *dy, const tn_tensor *dx);

/* backward.c: gradients of a GLU. dgate and dup may have data NULL; dgate may be dp. */
void compose_glu_backward(composer *c, const tn_site *site, const tn_tensor *gate, const tn_tensor *up,
                          const tn_tensor *dp, const tn_tensor *dgate, const tn_tensor *dup);

/* lora.c: adds to a LORA_LINEAR's result, which is that of the product inside, what the adapter gives; and the
 * gradients of its factors, and what it adds to dx (data NULL: not wanted). */
void compose_lora(composer *c);
void compose_lora_backward(composer *c, const tn_tensor *dy, const tn_tensor *dx);

/* backward_moe.c: the gradients of a MOE_BLOCK. */
void compose_moe_backward(composer *c);

/* backward.c: gradients of one of the parts, whose site's parameters have the roles of call->grads. */
void compose_part_backward(composer *c, int part, const tn_site *otherwise, tn_call *call);

/* backward.c: gradients of any contract; parts: of a composed one, or NULL. */
tn_status compose_backward(const device *device, arena *a, graph_site *const *parts, const tn_call *call,
                           tn_error *err);

/* compose_steps.c: a device's gradients of one primitive operation, with scratch from the arena; TN_DECLINED where it
 * has none. */
void compose_backward_step(composer *c, const tn_call *call);

#endif
