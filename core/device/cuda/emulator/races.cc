#include "races.h"

#include <cstdio>
#include <cstring>
#include <dlfcn.h>
#include <map>
#include <mutex>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "fibres.h"

namespace emu {

// When and by whom something was done.
struct epoch {
  unsigned stream, launch, block, thread;
  unsigned generation; // barriers of the block before it
  unsigned time;       // releases of the thread before it
};

using block_key = std::tuple<unsigned, unsigned, unsigned>; // stream, launch, block
using thread_key = std::tuple<unsigned, unsigned, unsigned, unsigned>;

// What comes before a point, as the latest of everybody that does.
struct view {
  std::map<unsigned, unsigned> streams;     // launches before this one
  std::map<block_key, unsigned> blocks;     // generations before this one
  std::map<thread_key, unsigned> threads;   // up to and with this time
  std::map<std::pair<thread_key, unsigned>, unsigned> alone; // what was done at this very time

  bool sees(const epoch &e) const {
    auto s = streams.find(e.stream);
    if (s != streams.end() && s->second > e.launch) return true;
    auto b = blocks.find({e.stream, e.launch, e.block});
    if (b != blocks.end() && b->second > e.generation) return true;
    auto t = threads.find({e.stream, e.launch, e.block, e.thread});
    if (t != threads.end() && t->second >= e.time) return true;
    return !alone.empty() && alone.count({{e.stream, e.launch, e.block, e.thread}, e.time});
  }

  void join(const view &o) {
    later(streams, o.streams);
    later(blocks, o.blocks);
    later(threads, o.threads);
    later(alone, o.alone);
    drop(blocks);
    drop(threads);
    drop(alone);
  }

private:
  template <class M> static void later(M &to, const M &from) {
    for (auto &f : from) {
      unsigned &t = to[f.first];
      if (t < f.second) t = f.second;
    }
  }
  static const block_key &launch_of(const block_key &k) { return k; }
  static block_key launch_of(const thread_key &k) { return {std::get<0>(k), std::get<1>(k), 0}; }
  static block_key launch_of(const std::pair<thread_key, unsigned> &k) { return launch_of(k.first); }
  // What belongs to a launch that is seen whole says nothing more.
  template <class M> void drop(M &m) {
    for (auto at = m.begin(); at != m.end();) {
      block_key of = launch_of(at->first);
      auto s = streams.find(std::get<0>(of));
      bool old = s != streams.end() && std::get<1>(of) < s->second;
      at = old ? m.erase(at) : std::next(at);
    }
  }
};

// How an access gets along with others.
enum kind { READ, SYNC_READ, WRITE, STORE, RMW };

struct record {
  epoch by;
  uint8_t bytes; // of eight, one bit each
  kind is;
  const char *kernel;
  uintptr_t pc; // or else a site
  site at;
};

using cells = std::unordered_map<uintptr_t, std::vector<record>>;

// What a word of order.cuh carries along.
struct message {
  view seen;
  epoch by;
  scope reach;
};

struct launch_sight {
  unsigned stream, number;
  const char *kernel;
  view at_begin, at_end;
};

struct block_sight {
  launch_sight *of;
  unsigned index, generation;
  view seen; // by all threads, at the last barrier
  std::vector<thread_sight *> threads;
  std::vector<std::pair<uintptr_t, size_t>> shared;
  cells shared_cells;
};

struct thread_sight {
  block_sight *of;
  unsigned index, time;
  view own;      // acquired since the last barrier
  view fenced;   // what a relaxed store after a fence carries along
  view pending;  // what a fence after relaxed loads acquires
  bool has_own, has_fenced, has_pending;
};

static bool watching;
static cells memory;
static std::unordered_map<uintptr_t, message> words;
static std::map<uintptr_t, size_t> ranges;
struct stream_state {
  unsigned launches;
  view seen;
};
static std::map<unsigned, stream_state> streams;
static view host;
static std::map<std::string, unsigned> known_sites; // times used
static std::string left_out;
static std::mutex found_mutex;
static std::vector<std::string> found;
static unsigned long found_in_all;

static std::string name_of(site at) {
  const char *slash = strrchr(at.file, '/');
  return std::string(slash ? slash + 1 : at.file) + ":" + std::to_string(at.line);
}

// Whether a part of a primitive has its effect.
static bool works(site at, const char *part) {
  if (!watching) return true;
  std::string name = name_of(at) + " " + part;
  known_sites[name]++;
  return name != left_out;
}

// ---- what is seen ----

static epoch now(const thread_sight *t) {
  const block_sight *b = t->of;
  return {b->of->stream, b->of->number, b->index, t->index, b->generation, t->time};
}

static bool sees(const thread_sight *t, const epoch &e) {
  const block_sight *b = t->of;
  if (e.stream == b->of->stream && e.launch <= b->of->number) {
    if (e.launch < b->of->number) return true;
    if (e.block == b->index && (e.thread == t->index || e.generation < b->generation)) return true;
  }
  return b->seen.sees(e) || (t->has_own && t->own.sees(e));
}

static view all_of(const thread_sight *t) {
  const block_sight *b = t->of;
  view v = b->seen;
  if (t->has_own) v.join(t->own);
  view me;
  me.streams[b->of->stream] = b->of->number;
  me.blocks[{b->of->stream, b->of->number, b->index}] = b->generation;
  me.threads[{b->of->stream, b->of->number, b->index, t->index}] = t->time;
  v.join(me);
  return v;
}

// ---- accesses ----

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
  std::lock_guard<std::mutex> l(found_mutex);
  if (found_in_all++ < 4)
    found.push_back("race: " + name_of(before) + ", then " + name_of(after));
}

static void touch_cell(std::vector<record> &cell, const thread_sight *t, const record &r) {
  size_t kept = 0;
  for (record &e : cell) {
    bool seen = sees(t, e.by);
    if (!seen && (e.bytes & r.bytes) && conflict(e.is, r.is)) found_race(e, r);
    // Who conflicts with the earlier one does so with this one, too.
    bool covered = seen && (e.bytes & ~r.bytes) == 0 && (e.is == r.is || r.is == WRITE);
    if (!covered) cell[kept++] = e;
  }
  cell.resize(kept);
  cell.push_back(r);
}

static cells *cells_of(const thread_sight *t, uintptr_t p) {
  for (auto &s : t->of->shared)
    if (p >= s.first && p < s.first + s.second) return &t->of->shared_cells;
  auto at = ranges.upper_bound(p);
  if (at == ranges.begin()) return nullptr;
  --at;
  return p < at->first + at->second ? &memory : nullptr;
}

static void touch(const thread_sight *t, const void *address, size_t bytes, kind is, void *pc, site at = {}) {
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

static thread_sight *watched() {
  if (!watching) return nullptr;
  fibre *f = self();
  return f ? f->sight : nullptr;
}

// ---- words ----

static bool reaches(const message &m, const thread_sight *t, scope s) {
  return (m.reach == SYS && s == SYS) || m.by.stream == t->of->of->stream;
}

static void take(thread_sight *t, uintptr_t word, bool acquire, scope s) {
  auto at = words.find(word);
  if (at == words.end() || !reaches(at->second, t, s) || sees(t, at->second.by)) return;
  (acquire ? t->own : t->pending).join(at->second.seen);
  (acquire ? t->has_own : t->has_pending) = true;
}

// changes: a read comes before it in one step, and what it carried goes on.
static void give(thread_sight *t, uintptr_t word, bool release, scope s, bool changes) {
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
  thread_sight *t = watched();
  if (!t) return;
  bool acquire = o == ACQUIRE && works(at, "acquire");
  touch(t, p, n, o == RELAXED ? READ : SYNC_READ, nullptr, at);
  take(t, (uintptr_t)p, acquire, s);
}

static void on_store(void *p, size_t n, order o, scope s, site at) {
  thread_sight *t = watched();
  if (!t) return;
  t->time++; // what follows is done at a time of its own
  touch(t, p, n, STORE, nullptr, at);
  give(t, (uintptr_t)p, o == RELEASE && works(at, "release"), s, false);
}

static void on_change(void *p, size_t n, order o, scope s, site at) {
  thread_sight *t = watched();
  if (!t) return;
  t->time++;
  touch(t, p, n, RMW, nullptr, at);
  take(t, (uintptr_t)p, o & ACQUIRE && works(at, "acquire"), s);
  give(t, (uintptr_t)p, o & RELEASE && works(at, "release"), s, true);
}

uint64_t load(const uint64_t *p, order o, scope s, site at) {
  on_load(p, sizeof *p, o, s, at);
  return __atomic_load_n(p, __ATOMIC_SEQ_CST);
}
void store(uint64_t *p, uint64_t v, order o, scope s, site at) {
  on_store(p, sizeof *p, o, s, at);
  __atomic_store_n(p, v, __ATOMIC_SEQ_CST);
}
uint64_t add(uint64_t *p, uint64_t v, order o, scope s, site at) {
  on_change(p, sizeof *p, o, s, at);
  return __atomic_fetch_add(p, v, __ATOMIC_SEQ_CST);
}
uint32_t add(uint32_t *p, uint32_t v, order o, scope s, site at) {
  on_change(p, sizeof *p, o, s, at);
  return __atomic_fetch_add(p, v, __ATOMIC_SEQ_CST);
}
uint64_t swap_if_zero(uint64_t *p, uint64_t v, order o, scope s, site at) {
  on_change(p, sizeof *p, o, s, at);
  uint64_t old = 0;
  __atomic_compare_exchange_n(p, &old, v, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
  return old;
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
  thread_sight *t = watched();
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

// ---- threads, blocks, launches ----

launch_sight *launch_begins(unsigned stream, const char *kernel) {
  if (!watching) return nullptr;
  stream_state &s = streams[stream];
  s.seen.join(host);
  auto *l = new launch_sight{stream, ++s.launches, kernel, s.seen, {}};
  l->at_begin.streams[stream] = l->number;
  return l;
}

void launch_ends(launch_sight *l) {
  if (!l) return;
  stream_state &s = streams[l->stream];
  s.seen.join(l->at_end);
  s.seen.streams[l->stream] = l->number + 1;
  delete l;
}

block_sight *block_begins(launch_sight *l, unsigned index, unsigned threads) {
  if (!l) return nullptr;
  auto *b = new block_sight{l, index, 0, l->at_begin, {}, {}, {}};
  for (unsigned i = 0; i < threads; i++) b->threads.push_back(new thread_sight{b, i, 0, {}, {}, {}, false, false, false});
  return b;
}

static void gather(block_sight *b) {
  for (thread_sight *t : b->threads) {
    if (!t->has_own) continue;
    b->seen.join(t->own);
    t->own = {};
    t->has_own = false;
  }
}

void block_ends(block_sight *b) {
  if (!b) return;
  gather(b);
  b->of->at_end.join(b->seen);
  for (thread_sight *t : b->threads) delete t;
  delete b;
}

void barrier_passed(block_sight *b) {
  if (!b) return;
  gather(b);
  b->generation++;
}

bool barrier_counts(site at) { return works(at, "barrier"); }

thread_sight *sight_of(block_sight *b, unsigned thread) { return b ? b->threads[thread] : nullptr; }

void shared_by_block(block_sight *b, const void *p, size_t bytes) {
  if (b) b->shared.push_back({(uintptr_t)p, bytes});
}

// A copy is a launch of one thread.
void copied(unsigned stream, void *to, const void *from, size_t bytes) {
  launch_sight *l = launch_begins(stream, "a copy");
  if (!l) return;
  block_sight *b = block_begins(l, 0, 1);
  touch(b->threads[0], from, bytes, READ, nullptr);
  touch(b->threads[0], to, bytes, WRITE, nullptr);
  block_ends(b);
  launch_ends(l);
}

void host_waited(unsigned stream) {
  if (watching) host.join(streams[stream].seen);
}

void memory_appears(const void *p, size_t bytes) { ranges[(uintptr_t)p] = bytes; }

template <class M> static void drop_range(M &m, uintptr_t first, uintptr_t end) {
  for (auto at = m.begin(); at != m.end();) at = at->first >= first && at->first < end ? m.erase(at) : std::next(at);
}

void memory_goes(const void *p) {
  auto at = ranges.find((uintptr_t)p);
  if (at == ranges.end()) return;
  uintptr_t end = at->first + at->second;
  drop_range(memory, at->first >> 3, end >> 3);
  drop_range(words, at->first, end);
  ranges.erase(at);
}

// ---- for tests ----

void watch(bool on) {
  std::lock_guard<std::mutex> l(found_mutex);
  watching = on;
  memory.clear();
  words.clear();
  streams.clear();
  host = {};
  known_sites.clear();
  left_out.clear();
  found.clear();
  found_in_all = 0;
}

std::string races() {
  std::lock_guard<std::mutex> l(found_mutex);
  std::string text;
  for (auto &f : found) text += f + "\n";
  if (found_in_all > found.size()) text += "and " + std::to_string(found_in_all - found.size()) + " races more\n";
  found.clear();
  found_in_all = 0;
  return text;
}

std::string sites() {
  std::string text;
  for (auto &s : known_sites) text += s.first + "\n";
  return text;
}

void leave_out(const char *site) { left_out = site; }

} // namespace emu

// What -fsanitize=thread calls.
#define PC __builtin_return_address(0)
#define TOLD(name, bytes, is) \
  void __tsan_##name(void *p) { \
    if (emu::thread_sight *t = emu::watched()) emu::touch(t, p, bytes, is, PC); \
  }
#define TOLD_ALL(bytes) \
  TOLD(read##bytes, bytes, emu::READ) \
  TOLD(write##bytes, bytes, emu::WRITE) \
  TOLD(unaligned_read##bytes, bytes, emu::READ) \
  TOLD(unaligned_write##bytes, bytes, emu::WRITE)

extern "C" {
TOLD_ALL(1)
TOLD_ALL(2)
TOLD_ALL(4)
TOLD_ALL(8)
TOLD_ALL(16)
void __tsan_read_range(void *p, size_t bytes) {
  if (emu::thread_sight *t = emu::watched()) emu::touch(t, p, bytes, emu::READ, PC);
}
void __tsan_write_range(void *p, size_t bytes) {
  if (emu::thread_sight *t = emu::watched()) emu::touch(t, p, bytes, emu::WRITE, PC);
}
void __tsan_init() {}
void __tsan_func_entry(void *) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void **, void *) {}
void __tsan_vptr_read(void **) {}
}
