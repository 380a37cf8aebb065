#include "fibres.h"
#include "trace.h"

#include <csetjmp>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <sys/mman.h>
#include <ucontext.h>
#include <vector>

namespace emu {

static const size_t stack_bytes = 256 << 10;
static const unsigned warp = 32;

// A fibre's place on a stack of its own. Switching is by setjmp, which makes no
// system call; ucontext only makes the first step onto the stack.
struct context {
  jmp_buf at;
  bool begun;
  void *stack;
};

// Lanes that exchange values: the last one to come lets the others go on.
struct exchange {
  uint32_t lanes, generation, arrived;
  uint32_t value[2][warp];
};

struct block {
  running *of;
  unsigned index, alive, at_barrier;
  uint64_t sleeps_until; // in turns: some blocks come long after the others
  std::vector<fibre> fibres;
  std::map<const void *, std::vector<char>> shared;
  std::vector<std::vector<std::unique_ptr<exchange>>> exchanges; // by warp
  block_trace *trace;
  bool barrier_counts;
};

struct running {
  launch l;
  std::vector<char> params;
  unsigned next, ended; // blocks
  launch_trace *trace;
};

static std::vector<std::unique_ptr<block>> resident;
static std::deque<running *> waiting;
static std::set<running *> begun;
static std::vector<void *> stacks; // free ones
static size_t most_resident = 8;
static uint64_t random_state = 1;
static unsigned yields = 64;
static const unsigned longest_sleep = 17; // a power of two
static uint64_t turns_taken;
static fibre *current;
static jmp_buf scheduler;
static ucontext_t scheduler_context;

static uint32_t random32() { // xorshift64*
  random_state ^= random_state >> 12;
  random_state ^= random_state << 25;
  random_state ^= random_state >> 27;
  return (random_state * 2685821657736338717ull) >> 32;
}

void seed(uint64_t value, int yields_per_256, int resident_blocks) {
  std::lock_guard<std::mutex> l(turns);
  random_state = value * 2 + 1;
  yields = yields_per_256;
  most_resident = resident_blocks;
}

fibre *self() { return current; }

const char *running_kernel() { return current ? current->of->of->l.name : nullptr; }

uint64_t now_ns() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000000000ull + t.tv_nsec;
}

static void leave() {
  if (_setjmp(current->state->at) == 0) _longjmp(scheduler, 1);
}

void maybe_yield() {
  if (random32() % 256 < yields) leave();
}

void pause() {
  current->is = fibre::PAUSED;
  leave();
}

static std::vector<std::string> uneven;
static const size_t most_uneven = 16;

std::vector<std::string> uneven_barriers() {
  std::lock_guard<std::mutex> l(turns);
  std::vector<std::string> found;
  found.swap(uneven);
  return found;
}

// Notes threads that do not wait at the same place.
static void compare_places(const block *b) {
  const fibre *first = nullptr;
  for (const fibre &f : b->fibres) {
    if (f.is != fibre::AT_BARRIER) continue;
    if (!first) first = &f;
    if (f.waits_at.line == first->waits_at.line && !strcmp(f.waits_at.file, first->waits_at.file)) continue;
    if (uneven.size() < most_uneven)
      uneven.push_back(std::string(b->of->l.name) + ": a thread waits at " + name_of(first->waits_at) + ", another one of its block at " +
                       name_of(f.waits_at));
    return;
  }
}

static void release_barrier(block *b) {
  if (b->at_barrier == 0 || b->at_barrier < b->alive) return;
  b->at_barrier = 0;
  compare_places(b);
  if (b->barrier_counts) barrier_passed(b->trace);
  for (fibre &f : b->fibres)
    if (f.is == fibre::AT_BARRIER) f.is = fibre::RUNS;
}

void barrier(site at) {
  block *b = current->of;
  b->barrier_counts = emu::barrier_counts(at);
  b->at_barrier++;
  current->waits_at = at;
  current->is = fibre::AT_BARRIER;
  release_barrier(b);
  leave();
}

static exchange *exchange_of(uint32_t lanes) {
  auto &list = current->of->exchanges[current->thread_idx.x / warp];
  for (auto &e : list)
    if (e->lanes == lanes) return e.get();
  list.push_back(std::unique_ptr<exchange>(new exchange{lanes, 0, 0, {}}));
  return list.back().get();
}

uint32_t shuffle_xor(uint32_t lanes, uint32_t v, int apart) {
  unsigned lane = current->thread_idx.x % warp;
  exchange *e = exchange_of(lanes);
  unsigned generation = e->generation;
  e->value[generation & 1][lane] = v;
  if (++e->arrived == (unsigned)__builtin_popcount(lanes)) {
    e->arrived = 0;
    e->generation++;
    for (fibre &f : current->of->fibres)
      if (f.is == fibre::AT_SHUFFLE && f.at == e) f.is = fibre::RUNS;
    maybe_yield();
  } else {
    current->is = fibre::AT_SHUFFLE;
    current->at = e;
    leave();
  }
  return e->value[generation & 1][lane ^ apart];
}

void *shared(const void *key, size_t bytes) {
  auto &memory = current->of->shared[key];
  if (memory.empty()) {
    memory.resize(bytes + 16);
    memset(memory.data(), 0xcd, memory.size()); // no kernel may rely on zeros
    shared_by_block(current->of->trace, memory.data(), memory.size());
  }
  return (void *)(((uintptr_t)memory.data() + 15) & ~(uintptr_t)15);
}

static void body() {
  running *r = current->of->of;
  r->l.run(r->params.data());
  current->is = fibre::ENDED;
  _longjmp(scheduler, 1);
}

static void *new_stack() {
  if (!stacks.empty()) {
    void *s = stacks.back();
    stacks.pop_back();
    return s;
  }
  void *s = mmap(nullptr, stack_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (s == MAP_FAILED) abort();
  return s;
}

static void admit() {
  while (!waiting.empty() && resident.size() < most_resident) {
    running *r = waiting.front();
    std::unique_ptr<block> b(new block);
    b->of = r;
    b->index = r->next++;
    b->alive = r->l.threads;
    b->at_barrier = 0;
    b->sleeps_until = random32() % 4 ? 0 : turns_taken + (1ull << random32() % longest_sleep);
    b->trace = block_begins(r->trace, b->index, r->l.threads);
    b->barrier_counts = true;
    b->fibres.resize(r->l.threads);
    b->exchanges.resize((r->l.threads + warp - 1) / warp);
    for (unsigned t = 0; t < r->l.threads; t++)
      b->fibres[t] = fibre{{t, 0, 0}, {b->index, 0, 0}, {r->l.threads, 1, 1}, {r->l.blocks, 1, 1}, b.get(),
                           new context{{}, false, new_stack()}, fibre::RUNS, 0, nullptr, trace_of(b->trace, t), {}};
    resident.push_back(std::move(b));
    if (r->next == r->l.blocks) waiting.pop_front();
  }
}

static void enter(fibre *f) {
  current = f;
  if (f->state->begun) _longjmp(f->state->at, 1);
  f->state->begun = true;
  ucontext_t c;
  getcontext(&c);
  c.uc_stack.ss_sp = f->state->stack;
  c.uc_stack.ss_size = stack_bytes;
  c.uc_link = &scheduler_context;
  makecontext(&c, body, 0);
  setcontext(&c);
}

static void step(fibre *f) {
  if (_setjmp(scheduler) == 0) enter(f);
  current = nullptr;
  if (f->is != fibre::ENDED) return;
  block *b = f->of;
  stacks.push_back(f->state->stack);
  delete f->state;
  b->alive--;
  release_barrier(b);
}

static void retire(size_t at) {
  block_ends(resident[at]->trace);
  resident[at]->of->ended++;
  resident.erase(resident.begin() + at);
}

// A fibre that can go on, beginning at a random place; paused ones can.
static fibre *choose(block *b) {
  size_t n = b->fibres.size(), first = random32() % n;
  for (size_t i = 0; i < n; i++) {
    fibre *f = &b->fibres[(first + i) % n];
    if (f->is == fibre::RUNS || f->is == fibre::PAUSED) return f;
  }
  return nullptr;
}

bool turn(int steps) {
  std::lock_guard<std::mutex> l(turns);
  bool worked = false;
  for (; steps > 0; steps--) {
    turns_taken++;
    admit();
    if (resident.empty()) return worked;
    size_t at = random32() % resident.size();
    block *b = resident[at].get();
    if (turns_taken < b->sleeps_until) {
      turns_taken += 16; // a block that only sleeps is soon awake
      worked = true;
      continue;
    }
    fibre *f = choose(b);
    if (!f) abort(); // a barrier or an exchange that some lane never reaches
    if (f->is == fibre::PAUSED) f->is = fibre::RUNS;
    step(f);
    worked = worked || f->is != fibre::PAUSED;
    if (b->alive == 0) retire(at);
  }
  return worked;
}

running *begin(const launch &l) {
  const char *p = (const char *)l.params;
  running *r = new running{l, std::vector<char>(p, p + l.param_bytes), 0, 0, launch_begins(l.stream, l.name)};
  waiting.push_back(r);
  begun.insert(r);
  return r;
}

bool finished(running *r) {
  if (r->ended < r->l.blocks) return false;
  launch_ends(r->trace);
  begun.erase(r);
  delete r;
  return true;
}

static void kill(block *b) {
  for (fibre &f : b->fibres) {
    if (f.is == fibre::ENDED) continue;
    stacks.push_back(f.state->stack);
    delete f.state;
  }
  block_ends(b->trace);
}

void kill_all() {
  std::lock_guard<std::mutex> l(turns);
  for (auto &b : resident) kill(b.get());
  resident.clear();
  waiting.clear();
  for (running *r : begun) {
    launch_ends(r->trace);
    delete r;
  }
  begun.clear();
}

} // namespace emu
