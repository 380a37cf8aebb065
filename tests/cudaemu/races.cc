#include "races.h"

#include <algorithm>
#include <cstdio>
#include <dlfcn.h>
#include <mutex>

#include "fibres.h"
#include "trace.h"

namespace emu {

std::mutex turns;
bool watching;
static cells memory;
static std::map<uintptr_t, size_t> ranges; // of devices
static std::vector<std::string> found;
static unsigned long found_in_all;

static bool conflict(kind a, kind b) {
  if (a == WRITE || b == WRITE) return true;
  bool reads_a = a == READ || a == SYNC_READ, reads_b = b == READ || b == SYNC_READ;
  if (reads_a && reads_b) return false;
  if (reads_a || reads_b) return a == READ || b == READ;
  return a == STORE || b == STORE; // two additions may come in any order
}

static const char *const kind_names[] = {"a read", "an atomic read", "a write", "an atomic write", "an atomic change"};

static std::string name_of(const record &r) {
  char text[200];
  std::string at = r.at.file ? name_of(r.at) : "";
  Dl_info info{};
  if (r.pc && dladdr((void *)r.pc, &info)) {
    snprintf(text, sizeof text, "+0x%lx", (unsigned long)(r.pc - (uintptr_t)info.dli_fbase) - 1);
    at = text;
  }
  const epoch &e = r.by;
  snprintf(text, sizeof text, "%s at %s of %s (stream %u, launch %u, block %u, thread %u)", kind_names[r.is], at.c_str(), r.kernel,
           e.stream, e.launch, e.block, e.thread);
  return text;
}

static void found_race(const record &before, const record &after) {
  if (found_in_all++ < 4)
    found.push_back("race: " + name_of(before) + ", then " + name_of(after));
}

static void touch_cell(std::vector<record> &cell, const thread_trace *t, const record &r) {
  size_t kept = 0;
  for (record &e : cell) {
    bool seen = sees(t, e.by);
    if (!seen && (e.bytes & r.bytes) && conflict(e.is, r.is)) found_race(e, r);
    // An access that conflicts with the earlier one also conflicts with this one.
    bool covered = seen && (e.bytes & ~r.bytes) == 0 && (e.is == r.is || r.is == WRITE);
    if (!covered) cell[kept++] = e;
  }
  cell.resize(kept);
  cell.push_back(r);
}

static cells *cells_of(const thread_trace *t, uintptr_t p) {
  for (auto &s : t->of->shared)
    if (p >= s.first && p < s.first + s.second) return &t->of->shared_cells;
  auto at = ranges.upper_bound(p);
  if (at == ranges.begin()) return nullptr;
  --at;
  return p < at->first + at->second ? &memory : nullptr;
}

void touch(const thread_trace *t, const void *address, size_t bytes, kind is, void *pc, site at) {
  uintptr_t p = (uintptr_t)address;
  cells *in = cells_of(t, p);
  if (!in) return;
  record r{now(t), 0, is, t->of->of->kernel, (uintptr_t)pc, at};
  for (uintptr_t end = p + bytes; p < end;) {
    uintptr_t first = p & 7, last = std::min<uintptr_t>(8, first + (end - p));
    r.bytes = (uint8_t)((0xffu << first) & (0xffu >> (8 - last)));
    touch_cell((*in)[p >> 3], t, r);
    p += last - first;
  }
}

thread_trace *watched() {
  if (!watching) return nullptr;
  fibre *f = self();
  return f ? f->trace : nullptr;
}

void memory_appears(const void *p, size_t bytes) {
  std::lock_guard<std::mutex> l(turns);
  ranges[(uintptr_t)p] = bytes;
}

template <class M> static void drop_range(M &m, uintptr_t first, uintptr_t end) {
  for (auto at = m.begin(); at != m.end();) at = at->first >= first && at->first < end ? m.erase(at) : std::next(at);
}

void memory_goes(const void *p) {
  std::lock_guard<std::mutex> l(turns);
  auto at = ranges.find((uintptr_t)p);
  if (at == ranges.end()) return;
  uintptr_t end = at->first + at->second;
  drop_range(memory, at->first >> 3, end >> 3);
  drop_range(words, at->first, end);
  ranges.erase(at);
}

void watch(bool on) {
  std::lock_guard<std::mutex> l(turns);
  watching = on;
  memory.clear();
  words.clear();
  forget_launches();
  forget_sites();
  found.clear();
  found_in_all = 0;
}

std::string races() {
  std::lock_guard<std::mutex> l(turns);
  std::string text;
  for (auto &f : found) text += f + "\n";
  if (found_in_all > found.size()) text += "and " + std::to_string(found_in_all - found.size()) + " races more\n";
  found.clear();
  found_in_all = 0;
  return text;
}

} // namespace emu
