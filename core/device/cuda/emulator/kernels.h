// The kernels of this build, by name.
#pragma once

#include "fibres.h"

namespace emu {

struct kernel {
  const char *name;
  entry run;
  size_t param_bytes;
};

const kernel *find_kernel(const char *name); // null: there is none

} // namespace emu
