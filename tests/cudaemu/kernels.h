// The kernels of this build, by name.
#pragma once

#include "fibres.h"

namespace emu {

struct kernel {
  const char *name;
  entry run;
  size_t param_bytes;
};

// Has each block of a launch take itself for the last one: all parameters begin
// with what says how many there are.
void hurry(void *params);

const kernel *find_kernel(const char *name); // null: there is none

} // namespace emu
