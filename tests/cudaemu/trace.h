// What threads, blocks and launches have seen; see races.h.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "races.h"

namespace emu {

// When something was done, and by which thread.
struct epoch {
  unsigned stream, launch, block, thread;
  unsigned generation; // barriers of the block before it
  unsigned time;       // releases of the thread before it
};

using block_key = std::tuple<unsigned, unsigned, unsigned>; // stream, launch, block
using thread_key = std::tuple<unsigned, unsigned, unsigned, unsigned>;

// What comes before a point, as the latest of every thread that does.
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

// What a word of memory_order.cuh carries along.
struct message {
  view seen;
  epoch by;
  scope reach;
};

struct launch_trace {
  unsigned stream, number;
  const char *kernel;
  view at_begin, at_end;
};

struct block_trace {
  launch_trace *of;
  unsigned index, generation;
  view seen; // by all threads, at the last barrier
  std::vector<thread_trace *> threads;
  std::vector<std::pair<uintptr_t, size_t>> shared;
  cells shared_cells;
};

struct thread_trace {
  block_trace *of;
  unsigned index, time;
  view own;      // acquired since the last barrier
  view fenced;   // what a relaxed store after a fence carries along
  view pending;  // what a fence after relaxed loads acquires
  bool has_own, has_fenced, has_pending;
};

// All that was done to words of memory_order.cuh, while watching.
extern bool watching;
extern std::unordered_map<uintptr_t, message> words;

// Whether a part of a primitive has its effect.
bool works(site at, const char *part);
std::string name_of(site at);
void forget_sites();

epoch now(const thread_trace *t);
bool sees(const thread_trace *t, const epoch &e);
view all_of(const thread_trace *t);
void forget_launches();

// Compares an access with earlier ones to the same bytes. It is known by the
// address of its code, or else by a site.
void touch(const thread_trace *t, const void *address, size_t bytes, kind is, void *pc, site at = {});

thread_trace *watched(); // the thread that runs now; null if no test watches

} // namespace emu
