/* The device "npu": Ascend NPUs through CANN's C interface, looked up at run time. */
#include "eager.h"
#include "eager_grad.h"
#include "queue.h"

static const tn_device device = {.size = sizeof device,
                                 .name = "npu",
                                 .summary = "Ascend NPUs through CANN",
                                 .available = npu_available,
                                 .open = npu_open,
                                 .close = npu_close,
                                 .alloc = npu_alloc,
                                 .free = npu_free,
                                 .upload = npu_upload,
                                 .download = npu_download,
                                 .sync = npu_sync,
                                 .supports = eager_supports,
                                 .scratch = eager_scratch,
                                 .eager = eager_perform,
                                 .backward_scratch = eager_backward_scratch,
                                 .backward = eager_backward};

TN_PLUGIN("ascend", "1.0.0", .device = &device);
