// A CUDA driver whose device is this process: memory is host memory, kernels
// run as fibres on one thread. It keeps the driver's rules as far as Moewire
// depends on them (what may be called during capture, what belongs to what,
// what must be freed), remembers breaches, and fails on demand.
//
// With EMULATOR_NULL in the environment kernels do nothing, and the rest is done
// at once: what is left of a call is what it costs the host.
#pragma once

#include <cuda.h>

#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "kernels.h"

namespace driver {

using std::mutex;
using std::string;
using lock = std::unique_lock<mutex>;

// What a stream does, in order: a kernel, or something short.
struct task {
  const emu::kernel *kernel;
  unsigned blocks, threads;
  std::vector<char> params;
  std::function<bool()> act; // true when it is over
};

using places = std::set<size_t>; // of nodes in their graph

struct node {
  task does;
  places after; // earlier ones
};

struct graph {
  std::vector<node> nodes;
};

// What the streams that take part in a capture share.
struct capture {
  graph into;
  CUstream origin;
  CUstreamCaptureMode mode;
  std::thread::id thread;
  bool invalid = false, over = false;
};

struct event {
  bool done = true;
  bool timing = true;
  uint64_t at_ns = 0, recorded = 0, reached = 0; // records that were queued, that were come to
  std::shared_ptr<capture> in; // which the latest record is part of
  places ends;                 // and what that comes behind
};

// A graph that runs.
struct graph_run {
  graph of;
  std::vector<emu::running *> runs; // by node
  places begun, ended;
};

struct stream {
  std::deque<task> tasks;
  emu::running *runs = nullptr;
  std::shared_ptr<capture> in; // null: what it is given runs
  places ends;                 // what its next node comes behind
  unsigned number = 0;
  bool idle() const { return tasks.empty() && !runs; }
};

struct range {
  size_t bytes;
  int fd;
  bool rdma = false; // other devices may be let in
  int types = 0;     // of handles that it may be exported by
};

// EMULATOR_FABRIC says of fabric handles: "1": as with an IMEX channel, "refused": as
// without one; else the device has none.
enum fabrics { NO_FABRIC, FABRIC_REFUSED, FABRIC };
fabrics fabric();

// EMULATOR_DRIVER is the version of CUDA that the driver is made for.
int version();

struct failure {
  int after; // calls
  CUresult code;
  bool breaks; // the device, as an error of a kernel does
  bool later;  // the call itself is well, and those behind it tell
};

struct device {
  mutex m;
  std::condition_variable changed; // work came, or was done
  std::map<CUstream, std::unique_ptr<stream>> streams;
  std::map<CUevent, std::unique_ptr<event>> events;
  std::set<CUgraph> graphs;
  std::set<CUgraphExec> execs;
  std::set<CUmodule> modules;
  std::map<CUdeviceptr, range> memory, reserved, mapped, opened;
  std::map<void *, size_t> pinned;
  std::map<CUmemGenericAllocationHandle, range> handles;
  std::map<string, failure> failures;
  CUresult broken = CUDA_SUCCESS; // what calls get until the last reference to the context is gone
  std::map<string, unsigned long> calls;
  string hasty; // the kernel in which every block takes itself for the last one
  std::vector<string> breaches;
  unsigned long next = 1;
  int retained = 0;
  size_t depth = 1 << 30; // of a stream's queue
  bool initialised = false, runner = false, ends = false;
  const bool null = getenv("EMULATOR_NULL") != nullptr;
  std::thread thread;

  device() { streams[nullptr].reset(new stream); }
};

extern device *const d;

void breach(const string &what);

// All that the context has is freed, and the device is whole again.
void reclaim();

// What a call begins with, or why it fails: by a test's fault injection, for want of a
// context, or because it would end a capture.
CUresult asked(const char *call);
CUresult needs_context(const char *call);
CUresult not_beside_capture(const char *call);
CUresult not_captured(const char *call);
CUresult not_legacy(CUstream s, const char *call);

#define BEGIN(rule) \
  lock l(d->m); \
  if (CUresult r = rule(__func__)) return r

// The calling thread's, the current one last.
extern thread_local std::vector<CUcontext> contexts;
extern thread_local CUstreamCaptureMode careful; // about this thread's calls

stream *find(CUstream s);
bool any_work();

// What is captured.
void add_node(stream *s, task t);
CUresult joins(CUstream s, const event &e); // a stream waits for an event; either is captured
bool graph_step(graph_run &r, unsigned stream); // true when it is over
CUresult queue(CUstream s, task t);
CUresult short_task(CUstream s, std::function<bool()> act);

template <class Handle> Handle fresh() { return (Handle)(0x1000 + 8 * d->next++); }

} // namespace driver
