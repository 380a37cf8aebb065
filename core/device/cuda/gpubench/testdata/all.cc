// The engine's kernels and those of benchmarks, for the emulator that gpubench runs on.
#include "kernels.h"

#define find_kernel find_engine_kernel
#include "kernels.cc"
#undef find_kernel
#undef KERNEL

#define hurry unused_hurry
#define find_kernel find_baseline_kernel
#define kernels baseline_kernels
#define call baseline_call
#include "../baseline/testdata/emulated.cc"
#undef find_kernel
#undef kernels
#undef call
#undef hurry
#undef KERNEL

#define hurry unused_hurry_too
#define find_kernel find_probe_kernel
#define kernels probe_kernels
#define call probe_call
#include "../probe/testdata/emulated.cc"
#undef find_kernel

namespace emu {

const kernel *find_kernel(const char *name) {
  for (auto find : {find_engine_kernel, find_baseline_kernel, find_probe_kernel})
    if (const kernel *found = find(name)) return found;
  return nullptr;
}

} // namespace emu
