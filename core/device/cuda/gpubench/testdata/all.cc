// The engine's kernels and those of benchmarks, for the emulator that gpubench runs on.
#define find_kernel find_engine_kernel
#include "kernels.cc"
#undef find_kernel

#include "baseline/baseline.cu"
#include "probe/probe.cu"

namespace emu {

static const kernel of_benchmarks[] = {
    KERNEL(moewire_four_send, mw_four_args),         KERNEL(moewire_four_notify, mw_four_args),
    KERNEL(moewire_four_receive, mw_four_args),      KERNEL(moewire_four_return, mw_four_args),
    KERNEL(moewire_four_notify_outputs, mw_four_args), KERNEL(moewire_four_reduce, mw_four_args),
    KERNEL(moewire_probe_write, mw_probe_args),      KERNEL(moewire_probe_read, mw_probe_args),
    KERNEL(moewire_probe_last, mw_probe_args),       KERNEL(moewire_probe_warp, mw_probe_args),
    KERNEL(moewire_probe_clock, mw_probe_args),
};

const kernel *find_kernel(const char *name) {
  for (const kernel &k : of_benchmarks)
    if (!strcmp(k.name, name)) return &k;
  return find_engine_kernel(name);
}

} // namespace emu
