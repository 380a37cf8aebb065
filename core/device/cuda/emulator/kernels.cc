// Compiles the kernels for the CPU.
#include "kernels.h"

#define MW_HOST
#include "combine_publish.cu"
#include "combine_reduce.cu"
#include "combine_wait.cu"
#include "dispatch_place.cu"
#include "dispatch_plan.cu"
#include "dispatch_receive.cu"
#include "release.cu"

namespace emu {

template <class Args, void (*kernel)(Args)> static void call(const void *params) {
  kernel(*(const Args *)params);
}

#define KERNEL(name, args) {#name, call<args, name>, sizeof(args)}

static const kernel kernels[] = {
    KERNEL(moewire_dispatch_plan, mw_plan_args),       KERNEL(moewire_dispatch_place, mw_place_args),
    KERNEL(moewire_dispatch_receive, mw_receive_args), KERNEL(moewire_dispatch_release, mw_wait_args),
    KERNEL(moewire_combine_publish, mw_publish_args),  KERNEL(moewire_combine_again, mw_wait_args),
    KERNEL(moewire_combine_wait, mw_wait_args),        KERNEL(moewire_combine_reduce, mw_reduce_args),
};

const kernel *find_kernel(const char *name) {
  for (const kernel &k : kernels)
    if (!strcmp(k.name, name)) return &k;
  return nullptr;
}

} // namespace emu
