// The engine's kernels and the baseline's, for the emulator that gpubench runs on.
#include "kernels.h"

#define find_kernel find_engine_kernel
#include "kernels.cc"
#undef find_kernel
#undef KERNEL

#define find_kernel find_baseline_kernel
#define kernels baseline_kernels
#define call baseline_call
#define hurry baseline_hurry
#include "emulated.cc"
#undef find_kernel

namespace emu {

const kernel *find_kernel(const char *name) {
  const kernel *found = find_engine_kernel(name);
  return found ? found : find_baseline_kernel(name);
}

} // namespace emu
