// Counts what kernels read of the host's memory: on a device each such read is a way
// over the bus and back.
#include <map>
#include <string>

#include "fibres.h"

namespace emu {

bool counting, spoiling;
static std::map<const void *, size_t> pinned;
using by = std::pair<const void *, std::string>; // an allocation, or null; a kernel
static std::map<by, unsigned long> reads;

void pinned_appears(const void *p, size_t bytes) {
  std::lock_guard<std::mutex> l(turns);
  pinned[p] = bytes;
}

void pinned_goes(const void *p) {
  std::lock_guard<std::mutex> l(turns);
  pinned.erase(p);
}

// The allocation that an address lies in; null: none.
static const void *pinned_at(const void *p) {
  auto at = pinned.upper_bound(p);
  if (at == pinned.begin()) return nullptr;
  --at;
  return (const char *)p < (const char *)at->first + at->second ? at->first : nullptr;
}

void count_read(const void *p, bool plain) {
  const char *kernel = running_kernel();
  if (!kernel) return;
  if (!plain) reads[{nullptr, kernel}]++;
  if (const void *of = pinned_at(p)) reads[{of, kernel}]++;
}

void count(bool on) {
  std::lock_guard<std::mutex> l(turns);
  counting = on;
  reads.clear();
}

unsigned long counted(const char *kernel, const void *of) {
  std::lock_guard<std::mutex> l(turns);
  auto at = reads.find({of, kernel});
  return at == reads.end() ? 0 : at->second;
}

} // namespace emu
