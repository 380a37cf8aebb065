// The probes for the emulator of core/device/cuda.
#include "kernels.h"

#define MW_HOST
#include "../probe.cu"

namespace emu {

template <void (*kernel)(mw_probe_args)> static void call(const void *params) { kernel(*(const mw_probe_args *)params); }

#define KERNEL(name) {#name, call<name>, sizeof(mw_probe_args)}

static const kernel kernels[] = {
    KERNEL(moewire_probe_write), KERNEL(moewire_probe_read),  KERNEL(moewire_probe_last),
    KERNEL(moewire_probe_warp),  KERNEL(moewire_probe_clock),
};

void hurry(void *) {}

const kernel *find_kernel(const char *name) {
  for (const kernel &k : kernels)
    if (!strcmp(k.name, name)) return &k;
  return nullptr;
}

} // namespace emu
