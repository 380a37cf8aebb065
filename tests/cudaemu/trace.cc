#include "trace.h"

namespace emu {

struct stream_state {
  unsigned launches;
  view seen;
};
static std::map<unsigned, stream_state> streams;
static view host;

epoch now(const thread_trace *t) {
  const block_trace *b = t->of;
  return {b->of->stream, b->of->number, b->index, t->index, b->generation, t->time};
}

bool sees(const thread_trace *t, const epoch &e) {
  const block_trace *b = t->of;
  if (e.stream == b->of->stream && e.launch <= b->of->number) {
    if (e.launch < b->of->number) return true;
    if (e.block == b->index && (e.thread == t->index || e.generation < b->generation)) return true;
  }
  return b->seen.sees(e) || (t->has_own && t->own.sees(e));
}

view all_of(const thread_trace *t) {
  const block_trace *b = t->of;
  view v = b->seen;
  if (t->has_own) v.join(t->own);
  view me;
  me.streams[b->of->stream] = b->of->number;
  me.blocks[{b->of->stream, b->of->number, b->index}] = b->generation;
  me.threads[{b->of->stream, b->of->number, b->index, t->index}] = t->time;
  v.join(me);
  return v;
}

launch_trace *launch_begins(unsigned stream, const char *kernel) {
  if (!watching) return nullptr;
  stream_state &s = streams[stream];
  s.seen.join(host);
  auto *l = new launch_trace{stream, ++s.launches, kernel, s.seen, {}};
  l->at_begin.streams[stream] = l->number;
  return l;
}

void launch_ends(launch_trace *l) {
  if (!l) return;
  stream_state &s = streams[l->stream];
  s.seen.join(l->at_end);
  s.seen.streams[l->stream] = l->number + 1;
  delete l;
}

block_trace *block_begins(launch_trace *l, unsigned index, unsigned threads) {
  if (!l) return nullptr;
  auto *b = new block_trace{l, index, 0, l->at_begin, {}, {}, {}};
  for (unsigned i = 0; i < threads; i++) b->threads.push_back(new thread_trace{b, i, 0, {}, {}, {}, false, false, false});
  return b;
}

static void gather(block_trace *b) {
  for (thread_trace *t : b->threads) {
    if (!t->has_own) continue;
    b->seen.join(t->own);
    t->own = {};
    t->has_own = false;
  }
}

void block_ends(block_trace *b) {
  if (!b) return;
  gather(b);
  b->of->at_end.join(b->seen);
  for (thread_trace *t : b->threads) delete t;
  delete b;
}

void barrier_passed(block_trace *b) {
  if (!b) return;
  gather(b);
  b->generation++;
}

bool barrier_counts(site at) { return works(at, "barrier"); }

thread_trace *trace_of(block_trace *b, unsigned thread) { return b ? b->threads[thread] : nullptr; }

void shared_by_block(block_trace *b, const void *p, size_t bytes) {
  if (b) b->shared.push_back({(uintptr_t)p, bytes});
}

// A copy is a launch of one thread.
void copied(unsigned stream, void *to, const void *from, size_t bytes) {
  launch_trace *l = launch_begins(stream, "a copy");
  if (!l) return;
  block_trace *b = block_begins(l, 0, 1);
  touch(b->threads[0], from, bytes, READ, nullptr);
  touch(b->threads[0], to, bytes, WRITE, nullptr);
  block_ends(b);
  launch_ends(l);
}

void filled(unsigned stream, void *to, size_t bytes) {
  launch_trace *l = launch_begins(stream, "a fill");
  if (!l) return;
  block_trace *b = block_begins(l, 0, 1);
  touch(b->threads[0], to, bytes, WRITE, nullptr);
  block_ends(b);
  launch_ends(l);
}

void host_waited(unsigned stream) {
  if (watching) host.join(streams[stream].seen);
}

void forget_launches() {
  streams.clear();
  host = {};
}

} // namespace emu
