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

struct event {
  bool done = true;
  bool timing = true;
  uint64_t at_ns = 0, recorded = 0, reached = 0; // records that were queued, that were come to
};

struct graph {
  std::vector<task> tasks;
};

struct stream {
  std::deque<task> tasks;
  emu::running *runs = nullptr;
  CUstreamCaptureStatus capture = CU_STREAM_CAPTURE_STATUS_NONE;
  graph *into = nullptr;
  unsigned number = 0;
  bool idle() const { return tasks.empty() && !runs; }
};

struct range {
  size_t bytes;
  int fd;
  bool rdma = false; // other devices may be let in
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
  std::map<string, std::pair<int, CUresult>> failures; // after so many calls
  std::map<string, unsigned long> calls;
  string hasty; // the kernel whose blocks all take themselves for the last one
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

// What a call begins with, or why it fails: by a test's wish, for want of a
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
CUresult queue(CUstream s, task t);
CUresult short_task(CUstream s, std::function<bool()> act);

template <class Handle> Handle fresh() { return (Handle)(0x1000 + 8 * d->next++); }

} // namespace driver
