// The accesses of memory_order.cuh: what they do, and what they carry along.
#include "fibres.h"
#include "trace.h"

#include <cstdlib>

namespace emu {

std::unordered_map<uintptr_t, message> words;

static bool reaches(const message &m, const thread_trace *t, scope s) {
  return (m.reach == SYS && s == SYS) || m.by.stream == t->of->of->stream;
}

static void take(thread_trace *t, uintptr_t word, bool acquire, scope s) {
  auto at = words.find(word);
  if (at == words.end() || !reaches(at->second, t, s) || sees(t, at->second.by)) return;
  (acquire ? t->own : t->pending).join(at->second.seen);
  (acquire ? t->has_own : t->has_pending) = true;
}

// changes: a read comes before it in one step, and what it carried goes on.
static void give(thread_trace *t, uintptr_t word, bool release, scope s, bool changes) {
  message m{{}, now(t), s};
  if (release) m.seen = all_of(t);
  else if (t->has_fenced) m.seen = t->fenced;
  m.seen.alone[{{m.by.stream, m.by.launch, m.by.block, m.by.thread}, m.by.time}] = 1;
  auto at = words.find(word);
  if (changes && at != words.end()) m.seen.join(at->second.seen);
  words[word] = std::move(m);
  t->time++;
}

static void on_load(const void *p, size_t n, order o, scope s, site at) {
  thread_trace *t = watched();
  if (!t) return;
  bool acquire = o == ACQUIRE && works(at, "acquire");
  touch(t, p, n, o == RELAXED ? READ : SYNC_READ, nullptr, at);
  take(t, (uintptr_t)p, acquire, s);
}

static void on_store(void *p, size_t n, order o, scope s, site at) {
  thread_trace *t = watched();
  if (!t) return;
  t->time++; // what follows is done at a time of its own
  touch(t, p, n, STORE, nullptr, at);
  give(t, (uintptr_t)p, o == RELEASE && works(at, "release"), s, false);
}

static void on_change(void *p, size_t n, order o, scope s, site at) {
  thread_trace *t = watched();
  if (!t) return;
  t->time++;
  touch(t, p, n, RMW, nullptr, at);
  take(t, (uintptr_t)p, o & ACQUIRE && works(at, "acquire"), s);
  give(t, (uintptr_t)p, o & RELEASE && works(at, "release"), s, true);
}

uint64_t load(const uint64_t *p, order o, scope s, site at) {
  if (counting) count_read(p, false);
  on_load(p, sizeof *p, o, s, at);
  return __atomic_load_n(p, __ATOMIC_SEQ_CST);
}
void store(uint64_t *p, uint64_t v, order o, scope s, site at) {
  on_store(p, sizeof *p, o, s, at);
  __atomic_store_n(p, v, __ATOMIC_SEQ_CST);
}
// What an addition for all devices is without native atomics between them.
static uint64_t add_in_steps(uint64_t *p, uint64_t v) {
  uint64_t old = __atomic_load_n(p, __ATOMIC_SEQ_CST);
  pause(); // others come in between, if they are there
  __atomic_store_n(p, old + v, __ATOMIC_SEQ_CST);
  return old;
}

uint64_t add(uint64_t *p, uint64_t v, order o, scope s, site at) {
  on_change(p, sizeof *p, o, s, at);
  if (s == SYS && getenv("EMULATOR_NO_ATOMICS")) return add_in_steps(p, v);
  return __atomic_fetch_add(p, v, __ATOMIC_SEQ_CST);
}
uint32_t add(uint32_t *p, uint32_t v, order o, scope s, site at) {
  on_change(p, sizeof *p, o, s, at);
  return __atomic_fetch_add(p, v, __ATOMIC_SEQ_CST);
}
uint64_t swap_if(uint64_t *p, uint64_t old, uint64_t v, order o, scope s, site at) {
  on_change(p, sizeof *p, o, s, at);
  __atomic_compare_exchange_n(p, &old, v, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
  return old;
}
uint64_t swap_if_zero(uint64_t *p, uint64_t v, order o, scope s, site at) {
  return swap_if(p, 0, v, o, s, at);
}
uint64_t bit_or(uint64_t *p, uint64_t v, order o, scope s, site at) {
  on_change(p, sizeof *p, o, s, at);
  return __atomic_fetch_or(p, v, __ATOMIC_SEQ_CST);
}
uint64_t bit_and(uint64_t *p, uint64_t v, order o, scope s, site at) {
  on_change(p, sizeof *p, o, s, at);
  return __atomic_fetch_and(p, v, __ATOMIC_SEQ_CST);
}

void fence(site at) {
  thread_trace *t = watched();
  if (!t || !works(at, "fence")) return;
  if (t->has_pending) {
    t->own.join(t->pending);
    t->has_own = true;
    t->pending = {};
    t->has_pending = false;
  }
  t->fenced = all_of(t);
  t->has_fenced = true;
  t->time++;
}

} // namespace emu
