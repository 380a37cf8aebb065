// A CUDA driver whose device is this process: memory is host memory, kernels
// run as fibres on one thread. It keeps the driver's rules as far as Moewire
// depends on them (what may be called during capture, what belongs to what,
// what must be freed), remembers breaches, and fails on demand.
#include <cuda.h>

#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <sys/mman.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include "kernels.h"

namespace {

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
  std::vector<string> breaches;
  unsigned long next = 1;
  int retained = 0;
  bool initialised = false, runner = false, ends = false;
  std::thread thread;

  device() { streams[nullptr].reset(new stream); }
};

device *d = new device; // never freed: its thread may run until the process ends

thread_local std::vector<CUcontext> contexts;
const CUcontext primary = (CUcontext)0x10;

void breach(const string &what) { d->breaches.push_back(what); }

// Whether a call is to fail by a test's wish.
CUresult asked(const char *call) {
  d->calls[call]++;
  auto f = d->failures.find(call);
  if (f == d->failures.end() || f->second.first-- > 0) return CUDA_SUCCESS;
  CUresult code = f->second.second;
  d->failures.erase(f);
  return code;
}

CUresult needs_context(const char *call) {
  if (CUresult r = asked(call)) return r;
  if (!d->initialised) return CUDA_ERROR_NOT_INITIALIZED;
  if (contexts.empty()) {
    breach(string(call) + " without a context");
    return CUDA_ERROR_INVALID_CONTEXT;
  }
  return CUDA_SUCCESS;
}

bool capturing() {
  for (auto &s : d->streams)
    if (s.second->capture == CU_STREAM_CAPTURE_STATUS_ACTIVE) return true;
  return false;
}

// Calls that end a capture: they would wait, or are unsafe beside one.
CUresult not_captured(const char *call) {
  if (CUresult r = needs_context(call)) return r;
  if (!capturing()) return CUDA_SUCCESS;
  breach(string(call) + " during capture");
  for (auto &s : d->streams)
    if (s.second->capture == CU_STREAM_CAPTURE_STATUS_ACTIVE) s.second->capture = CU_STREAM_CAPTURE_STATUS_INVALIDATED;
  return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

#define BEGIN(rule) \
  lock l(d->m); \
  if (CUresult r = rule(__func__)) return r

stream *find(CUstream s) {
  auto at = d->streams.find(s);
  return at == d->streams.end() ? nullptr : at->second.get();
}

void run_stream(stream *s) {
  if (s->runs && emu::finished(s->runs)) s->runs = nullptr;
  while (!s->runs && !s->tasks.empty()) {
    task &t = s->tasks.front();
    if (t.kernel) {
      s->runs = emu::begin({t.kernel->run, t.blocks, t.threads, t.params.data(), t.params.size(), s->number, t.kernel->name});
    } else if (!t.act()) {
      return;
    }
    s->tasks.pop_front();
  }
}

bool any_work() {
  for (auto &s : d->streams)
    if (!s.second->idle()) return true;
  return false;
}

void run_device() {
  lock l(d->m);
  while (!d->ends) {
    d->changed.wait(l, [] { return d->ends || any_work(); });
    for (auto &s : d->streams) run_stream(s.second.get());
    l.unlock();
    // Fibres touch nothing of the driver's, so calls go on meanwhile.
    bool worked = emu::turn(4096);
    if (!worked) usleep(50);
    l.lock();
    d->changed.notify_all();
  }
}

CUresult queue(CUstream handle, task t) {
  stream *s = find(handle);
  if (!s) return CUDA_ERROR_INVALID_HANDLE;
  if (s->capture == CU_STREAM_CAPTURE_STATUS_INVALIDATED) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  if (s->capture == CU_STREAM_CAPTURE_STATUS_ACTIVE)
    s->into->tasks.push_back(std::move(t));
  else
    s->tasks.push_back(std::move(t));
  if (!d->runner) {
    d->runner = true;
    d->thread = std::thread(run_device);
    d->thread.detach();
  }
  d->changed.notify_all();
  return CUDA_SUCCESS;
}

CUresult short_task(CUstream s, std::function<bool()> act) { return queue(s, task{nullptr, 0, 0, {}, std::move(act)}); }

const size_t page = 2 << 20;

int new_file(size_t bytes) {
  int fd = memfd_create("emulated-device", MFD_CLOEXEC);
  if (fd < 0 || ftruncate(fd, bytes)) abort();
  return fd;
}

void *map_file(int fd, size_t bytes, void *at) {
  return mmap(at, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | (at ? MAP_FIXED : 0), fd, 0);
}

size_t whole(size_t bytes) { return (bytes + page - 1) / page * page; }

// An address range of its own, aligned like a device's.
CUdeviceptr reserve(size_t bytes) {
  char *p = (char *)mmap(nullptr, bytes + page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) abort();
  return ((CUdeviceptr)p + page - 1) / page * page;
}

template <class Handle> Handle fresh() { return (Handle)(0x1000 + 8 * d->next++); }

} // namespace

extern "C" {

// For tests: the n-th next call of a function fails.
void emulator_fail(const char *call, int after, int code) {
  lock l(d->m);
  d->failures[call] = {after, (CUresult)code};
}

unsigned long emulator_calls(const char *call) {
  lock l(d->m);
  return d->calls[call];
}

void emulator_seed(unsigned long seed, int yields_per_256, int resident_blocks) {
  lock l(d->m);
  emu::seed(seed, yields_per_256, resident_blocks);
}

// From here on accesses that nothing orders are breaches; or no more.
void emulator_watch(int on) {
  lock l(d->m);
  emu::watch(on);
}

// The uses of ordering that were seen while watching, one per line; to free.
char *emulator_sites(void) { return strdup(emu::sites().c_str()); }

// Leaves one of them without its effect on order.
void emulator_leave_out(const char *site) {
  lock l(d->m);
  emu::leave_out(site);
}

// What was broken or is left, one per line. The text is the caller's, to free.
char *emulator_report(void) {
  lock l(d->m);
  string text;
  for (auto &b : d->breaches) text += b + "\n";
  text += emu::races();
  auto left = [&](const char *what, size_t n) {
    if (n) text += string(what) + " left: " + std::to_string(n) + "\n";
  };
  left("streams", d->streams.size() - 1);
  left("events", d->events.size());
  left("graphs", d->graphs.size() + d->execs.size());
  left("modules", d->modules.size());
  left("allocations", d->memory.size());
  left("pinned allocations", d->pinned.size());
  left("handles of memory", d->handles.size());
  left("reserved ranges", d->reserved.size());
  left("mapped ranges", d->mapped.size());
  left("opened allocations", d->opened.size());
  left("references to the context", d->retained);
  d->breaches.clear();
  return strdup(text.c_str());
}

CUresult cuInit(unsigned flags) {
  lock l(d->m);
  if (CUresult r = asked(__func__)) return r;
  d->initialised = true;
  return flags ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult cuDriverGetVersion(int *v) {
  *v = 13000;
  return CUDA_SUCCESS;
}

CUresult cuGetErrorName(CUresult e, const char **name) {
  static thread_local char text[64];
  snprintf(text, sizeof text, "CUDA_ERROR_%d", (int)e);
  *name = text;
  return CUDA_SUCCESS;
}

CUresult cuGetErrorString(CUresult, const char **text) {
  *text = "as the emulator was asked to";
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int *n) {
  lock l(d->m);
  if (CUresult r = asked(__func__)) return r;
  if (!d->initialised) return CUDA_ERROR_NOT_INITIALIZED;
  *n = 1;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice *out, int ordinal) {
  lock l(d->m);
  if (CUresult r = asked(__func__)) return r;
  if (!d->initialised) return CUDA_ERROR_NOT_INITIALIZED;
  *out = ordinal;
  return ordinal == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

CUresult cuDeviceGetName(char *name, int n, CUdevice) {
  snprintf(name, n, "emulated device");
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetAttribute(int *v, CUdevice_attribute a, CUdevice) {
  lock l(d->m);
  if (CUresult r = asked(__func__)) return r;
  switch (a) {
  case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: *v = 2; break;
  case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: *v = 9; break;
  case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
  case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED: *v = getenv("EMULATOR_NO_VMM") == nullptr; break;
  case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK: *v = 1024; break;
  default: *v = 0;
  }
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetUuid_v2(CUuuid *id, CUdevice) {
  memset(id->bytes, 0x5e, sizeof id->bytes);
  return CUDA_SUCCESS;
}

CUresult cuDeviceTotalMem_v2(size_t *n, CUdevice) {
  *n = 8ull << 30;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetPCIBusId(char *text, int n, CUdevice) {
  snprintf(text, n, "0000:00:00.0");
  return CUDA_SUCCESS;
}

CUresult cuDeviceCanAccessPeer(int *can, CUdevice, CUdevice) {
  *can = 1;
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *c, CUdevice) {
  lock l(d->m);
  if (CUresult r = asked(__func__)) return r;
  if (!d->initialised) return CUDA_ERROR_NOT_INITIALIZED;
  d->retained++;
  *c = primary;
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice) {
  lock l(d->m);
  if (d->retained-- == 0) breach("the context was released too often");
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxGetState(CUdevice, unsigned *flags, int *active) {
  lock l(d->m);
  *flags = 0;
  *active = d->retained > 0;
  return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext *c) {
  *c = contexts.empty() ? nullptr : contexts.back();
  return CUDA_SUCCESS;
}

CUresult cuCtxPushCurrent_v2(CUcontext c) {
  lock l(d->m);
  if (CUresult r = asked(__func__)) return r;
  if (c != primary || !d->retained) return CUDA_ERROR_INVALID_CONTEXT;
  contexts.push_back(c);
  return CUDA_SUCCESS;
}

CUresult cuCtxPopCurrent_v2(CUcontext *c) {
  lock l(d->m);
  if (contexts.empty()) {
    breach("cuCtxPopCurrent without a context");
    return CUDA_ERROR_INVALID_CONTEXT;
  }
  *c = contexts.back();
  contexts.pop_back();
  return CUDA_SUCCESS;
}

CUresult cuCtxEnablePeerAccess(CUcontext, unsigned) {
  BEGIN(not_captured);
  return CUDA_SUCCESS;
}

CUresult cuCtxSynchronize(void) {
  BEGIN(not_captured);
  d->changed.wait(l, [] { return !any_work(); });
  return CUDA_SUCCESS;
}

CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest) {
  BEGIN(needs_context);
  *least = 0;
  *greatest = -5;
  return CUDA_SUCCESS;
}

CUresult cuMemAlloc_v2(CUdeviceptr *p, size_t bytes) {
  BEGIN(not_captured);
  if (!bytes) return CUDA_ERROR_INVALID_VALUE;
  int fd = new_file(whole(bytes));
  *p = (CUdeviceptr)map_file(fd, whole(bytes), (void *)reserve(whole(bytes)));
  memset((void *)*p, 0xa5, bytes); // device memory is not cleared
  d->memory[*p] = {whole(bytes), fd};
  emu::memory_appears((void *)*p, bytes);
  return CUDA_SUCCESS;
}

CUresult cuMemAllocManaged(CUdeviceptr *p, size_t bytes, unsigned flags) {
  return flags == CU_MEM_ATTACH_GLOBAL ? cuMemAlloc_v2(p, bytes) : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemFree_v2(CUdeviceptr p) {
  BEGIN(not_captured);
  auto at = d->memory.find(p);
  if (at == d->memory.end()) {
    breach("cuMemFree of what was not allocated");
    return CUDA_ERROR_INVALID_VALUE;
  }
  munmap((void *)p, at->second.bytes);
  close(at->second.fd);
  emu::memory_goes((void *)p);
  d->memory.erase(at);
  return CUDA_SUCCESS;
}

CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total) {
  BEGIN(needs_context);
  *total = 8ull << 30;
  *free_bytes = *total / 2;
  return CUDA_SUCCESS;
}

CUresult cuMemHostAlloc(void **p, size_t bytes, unsigned) {
  BEGIN(not_captured);
  *p = calloc(1, whole(bytes));
  d->pinned[*p] = bytes;
  return CUDA_SUCCESS;
}

CUresult cuMemFreeHost(void *p) {
  BEGIN(not_captured);
  if (!d->pinned.erase(p)) {
    breach("cuMemFreeHost of what was not allocated");
    return CUDA_ERROR_INVALID_VALUE;
  }
  free(p);
  return CUDA_SUCCESS;
}

CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *p, void *host, unsigned) {
  BEGIN(needs_context);
  *p = (CUdeviceptr)host;
  return CUDA_SUCCESS;
}

CUresult cuMemsetD8Async(CUdeviceptr p, unsigned char v, size_t n, CUstream s) {
  BEGIN(needs_context);
  return short_task(s, [=] { return memset((void *)p, v, n), true; });
}

static CUresult copy(CUstream s, void *to, const void *from, size_t n) {
  unsigned number = find(s) ? find(s)->number : 0;
  return short_task(s, [=] { return memcpy(to, from, n), emu::copied(number, to, from, n), true; });
}

CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t n, CUstream s) {
  BEGIN(needs_context);
  return copy(s, (void *)to, from, n);
}

CUresult cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t n, CUstream s) {
  BEGIN(needs_context);
  return copy(s, to, (void *)from, n);
}

CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t n, CUstream s) {
  BEGIN(needs_context);
  return copy(s, (void *)to, (void *)from, n);
}

CUresult cuPointerGetAttribute(void *v, CUpointer_attribute a, CUdeviceptr p) {
  BEGIN(needs_context);
  for (auto *list : {&d->memory, &d->mapped, &d->opened})
    for (auto &m : *list)
      if (p >= m.first && p < m.first + m.second.bytes) {
        *(int *)v = a == CU_POINTER_ATTRIBUTE_MEMORY_TYPE ? CU_MEMORYTYPE_DEVICE : 0;
        return CUDA_SUCCESS;
      }
  return CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemCreate(CUmemGenericAllocationHandle *h, size_t bytes, const CUmemAllocationProp *prop, unsigned long long) {
  BEGIN(not_captured);
  if (bytes % page || prop->type != CU_MEM_ALLOCATION_TYPE_PINNED || prop->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
    return CUDA_ERROR_INVALID_VALUE;
  *h = d->next++;
  d->handles[*h] = {bytes, new_file(bytes)};
  return CUDA_SUCCESS;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle h) {
  BEGIN(needs_context);
  auto at = d->handles.find(h);
  if (at == d->handles.end()) {
    breach("cuMemRelease of an unknown handle");
    return CUDA_ERROR_INVALID_VALUE;
  }
  close(at->second.fd);
  d->handles.erase(at);
  return CUDA_SUCCESS;
}

CUresult cuMemAddressReserve(CUdeviceptr *p, size_t bytes, size_t, CUdeviceptr, unsigned long long) {
  BEGIN(not_captured);
  *p = reserve(bytes);
  d->reserved[*p] = {bytes, -1};
  return CUDA_SUCCESS;
}

CUresult cuMemAddressFree(CUdeviceptr p, size_t bytes) {
  BEGIN(needs_context);
  auto at = d->reserved.find(p);
  if (at == d->reserved.end() || at->second.bytes != bytes || d->mapped.count(p)) {
    breach("cuMemAddressFree of another range, or of one that is mapped");
    return CUDA_ERROR_INVALID_VALUE;
  }
  munmap((void *)p, bytes);
  d->reserved.erase(at);
  return CUDA_SUCCESS;
}

CUresult cuMemMap(CUdeviceptr p, size_t bytes, size_t offset, CUmemGenericAllocationHandle h, unsigned long long) {
  BEGIN(not_captured);
  if (!d->reserved.count(p) || !d->handles.count(h) || offset || bytes > d->handles[h].bytes)
    return CUDA_ERROR_INVALID_VALUE;
  if (map_file(d->handles[h].fd, bytes, (void *)p) == MAP_FAILED) return CUDA_ERROR_INVALID_VALUE;
  mprotect((void *)p, bytes, PROT_NONE); // until cuMemSetAccess
  d->mapped[p] = {bytes, -1};
  return CUDA_SUCCESS;
}

CUresult cuMemUnmap(CUdeviceptr p, size_t bytes) {
  BEGIN(needs_context);
  if (!d->mapped.erase(p)) {
    breach("cuMemUnmap of what is not mapped");
    return CUDA_ERROR_INVALID_VALUE;
  }
  mmap((void *)p, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  emu::memory_goes((void *)p);
  return CUDA_SUCCESS;
}

CUresult cuMemSetAccess(CUdeviceptr p, size_t bytes, const CUmemAccessDesc *desc, size_t n) {
  BEGIN(not_captured);
  if (!d->mapped.count(p) || n != 1 || desc->flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE) return CUDA_ERROR_INVALID_VALUE;
  mprotect((void *)p, bytes, PROT_READ | PROT_WRITE);
  emu::memory_appears((void *)p, bytes);
  return CUDA_SUCCESS;
}

CUresult cuMemGetAllocationGranularity(size_t *n, const CUmemAllocationProp *, CUmemAllocationGranularity_flags) {
  BEGIN(needs_context);
  *n = page;
  return CUDA_SUCCESS;
}

CUresult cuMemExportToShareableHandle(void *out, CUmemGenericAllocationHandle h, CUmemAllocationHandleType t, unsigned long long) {
  BEGIN(not_captured);
  if (t != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || !d->handles.count(h)) return CUDA_ERROR_INVALID_VALUE;
  *(int *)out = dup(d->handles[h].fd);
  return CUDA_SUCCESS;
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *h, void *fd, CUmemAllocationHandleType) {
  BEGIN(not_captured);
  int own = dup((int)(intptr_t)fd);
  off_t bytes = own < 0 ? -1 : lseek(own, 0, SEEK_END);
  if (bytes < 0) return CUDA_ERROR_INVALID_VALUE;
  *h = d->next++;
  d->handles[*h] = {(size_t)bytes, own};
  return CUDA_SUCCESS;
}

// A handle names process and descriptor: /proc lets the other one open it.
struct emulated_ipc {
  pid_t pid;
  int fd;
  size_t bytes;
};

CUresult cuIpcGetMemHandle(CUipcMemHandle *h, CUdeviceptr p) {
  BEGIN(not_captured);
  auto at = d->memory.find(p);
  if (at == d->memory.end()) return CUDA_ERROR_INVALID_VALUE;
  emulated_ipc e{getpid(), at->second.fd, at->second.bytes};
  memset(h, 0, sizeof *h);
  memcpy(h, &e, sizeof e);
  return CUDA_SUCCESS;
}

CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *p, CUipcMemHandle h, unsigned flags) {
  BEGIN(not_captured);
  emulated_ipc e;
  memcpy(&e, &h, sizeof e);
  if (flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS || e.pid == getpid()) return CUDA_ERROR_INVALID_VALUE;
  string path = "/proc/" + std::to_string(e.pid) + "/fd/" + std::to_string(e.fd);
  FILE *f = fopen(path.c_str(), "r+");
  if (!f) return CUDA_ERROR_INVALID_VALUE;
  *p = (CUdeviceptr)map_file(fileno(f), e.bytes, (void *)reserve(e.bytes));
  fclose(f);
  d->opened[*p] = {e.bytes, -1};
  return CUDA_SUCCESS;
}

CUresult cuIpcCloseMemHandle(CUdeviceptr p) {
  BEGIN(not_captured);
  auto at = d->opened.find(p);
  if (at == d->opened.end()) {
    breach("cuIpcCloseMemHandle of what is not open");
    return CUDA_ERROR_INVALID_VALUE;
  }
  munmap((void *)p, at->second.bytes);
  d->opened.erase(at);
  return CUDA_SUCCESS;
}

CUresult cuStreamCreateWithPriority(CUstream *s, unsigned flags, int) {
  BEGIN(not_captured);
  if (flags != CU_STREAM_NON_BLOCKING) return CUDA_ERROR_INVALID_VALUE;
  *s = fresh<CUstream>();
  d->streams[*s].reset(new stream);
  d->streams[*s]->number = d->next++;
  return CUDA_SUCCESS;
}

CUresult cuStreamDestroy_v2(CUstream s) {
  BEGIN(needs_context);
  if (!s || !find(s)) {
    breach("cuStreamDestroy of an unknown stream");
    return CUDA_ERROR_INVALID_HANDLE;
  }
  if (!find(s)->idle()) breach("a stream was destroyed that has work");
  d->streams.erase(s);
  return CUDA_SUCCESS;
}

CUresult cuStreamSynchronize(CUstream s) {
  BEGIN(not_captured);
  if (!find(s)) return CUDA_ERROR_INVALID_HANDLE;
  d->changed.wait(l, [s] { return find(s)->idle(); });
  emu::host_waited(find(s)->number);
  return CUDA_SUCCESS;
}

CUresult cuStreamQuery(CUstream s) {
  BEGIN(not_captured);
  if (!find(s)) return CUDA_ERROR_INVALID_HANDLE;
  return find(s)->idle() ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUresult cuStreamWaitEvent(CUstream s, CUevent e, unsigned) {
  BEGIN(needs_context);
  if (!d->events.count(e)) return CUDA_ERROR_INVALID_HANDLE;
  uint64_t recorded = d->events[e]->recorded; // a later record does not count
  return short_task(s, [=] { return !d->events.count(e) || d->events[e]->reached >= recorded; });
}

CUresult cuStreamIsCapturing(CUstream s, CUstreamCaptureStatus *status) {
  BEGIN(needs_context);
  if (!find(s)) return CUDA_ERROR_INVALID_HANDLE;
  *status = find(s)->capture;
  return CUDA_SUCCESS;
}

CUresult cuStreamBeginCapture_v2(CUstream s, CUstreamCaptureMode) {
  BEGIN(needs_context);
  if (!s || !find(s)) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  find(s)->capture = CU_STREAM_CAPTURE_STATUS_ACTIVE;
  find(s)->into = new graph;
  return CUDA_SUCCESS;
}

CUresult cuStreamEndCapture(CUstream s, CUgraph *g) {
  BEGIN(needs_context);
  stream *of = find(s);
  bool good = of->capture == CU_STREAM_CAPTURE_STATUS_ACTIVE;
  of->capture = CU_STREAM_CAPTURE_STATUS_NONE;
  *g = good ? (CUgraph)of->into : nullptr;
  if (good) d->graphs.insert(*g);
  return good ? CUDA_SUCCESS : CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
}

CUresult cuEventCreate(CUevent *e, unsigned flags) {
  BEGIN(not_captured);
  *e = fresh<CUevent>();
  d->events[*e].reset(new event);
  d->events[*e]->timing = !(flags & CU_EVENT_DISABLE_TIMING);
  return CUDA_SUCCESS;
}

CUresult cuEventDestroy_v2(CUevent e) {
  BEGIN(needs_context);
  if (d->events.erase(e)) return CUDA_SUCCESS;
  breach("cuEventDestroy of an unknown event");
  return CUDA_ERROR_INVALID_HANDLE;
}

CUresult cuEventRecord(CUevent e, CUstream s) {
  BEGIN(needs_context);
  if (!d->events.count(e)) return CUDA_ERROR_INVALID_HANDLE;
  event *of = d->events[e].get();
  of->done = false;
  uint64_t mine = ++of->recorded;
  return short_task(s, [=] {
    if (!d->events.count(e)) return true;
    of->reached = mine;
    if (of->recorded == mine) of->done = true, of->at_ns = emu::now_ns();
    return true;
  });
}

CUresult cuEventQuery(CUevent e) {
  BEGIN(not_captured);
  if (!d->events.count(e)) return CUDA_ERROR_INVALID_HANDLE;
  return d->events[e]->done ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUresult cuEventSynchronize(CUevent e) {
  BEGIN(not_captured);
  if (!d->events.count(e)) return CUDA_ERROR_INVALID_HANDLE;
  d->changed.wait(l, [e] { return d->events[e]->done; });
  return CUDA_SUCCESS;
}

CUresult cuEventElapsedTime(float *ms, CUevent from, CUevent to) {
  BEGIN(needs_context);
  if (!d->events[from]->timing || !d->events[to]->timing) return CUDA_ERROR_INVALID_HANDLE;
  *ms = (d->events[to]->at_ns - d->events[from]->at_ns) / 1e6f;
  return CUDA_SUCCESS;
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec *e, CUgraph g, unsigned long long) {
  BEGIN(not_captured);
  if (!d->graphs.count(g)) return CUDA_ERROR_INVALID_VALUE;
  *e = (CUgraphExec) new graph(*(graph *)g);
  d->execs.insert(*e);
  return CUDA_SUCCESS;
}

CUresult cuGraphLaunch(CUgraphExec e, CUstream s) {
  BEGIN(needs_context);
  if (!d->execs.count(e)) return CUDA_ERROR_INVALID_VALUE;
  for (const task &t : ((graph *)e)->tasks)
    if (CUresult r = queue(s, t)) return r;
  return CUDA_SUCCESS;
}

CUresult cuGraphExecDestroy(CUgraphExec e) {
  BEGIN(needs_context);
  if (!d->execs.erase(e)) return CUDA_ERROR_INVALID_VALUE;
  delete (graph *)e;
  return CUDA_SUCCESS;
}

CUresult cuGraphDestroy(CUgraph g) {
  BEGIN(needs_context);
  if (!d->graphs.erase(g)) return CUDA_ERROR_INVALID_VALUE;
  delete (graph *)g;
  return CUDA_SUCCESS;
}

CUresult cuModuleLoadDataEx(CUmodule *m, const void *image, unsigned, CUjit_option *, void **) {
  BEGIN(not_captured);
  if (!image) return CUDA_ERROR_INVALID_VALUE;
  *m = fresh<CUmodule>();
  d->modules.insert(*m);
  return CUDA_SUCCESS;
}

CUresult cuModuleUnload(CUmodule m) {
  BEGIN(not_captured);
  if (d->modules.erase(m)) return CUDA_SUCCESS;
  breach("cuModuleUnload of an unknown module");
  return CUDA_ERROR_INVALID_HANDLE;
}

// Every module has all kernels.
CUresult cuModuleGetFunction(CUfunction *f, CUmodule m, const char *name) {
  BEGIN(needs_context);
  if (!d->modules.count(m)) return CUDA_ERROR_INVALID_HANDLE;
  *f = (CUfunction)emu::find_kernel(name);
  return *f ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

CUresult cuFuncGetAttribute(int *v, CUfunction_attribute, CUfunction) {
  *v = 0;
  return CUDA_SUCCESS;
}

CUresult cuFuncSetAttribute(CUfunction, CUfunction_attribute, int) { return CUDA_SUCCESS; }

CUresult cuLaunchKernel(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                        unsigned, CUstream s, void **params, void **extra) {
  BEGIN(needs_context);
  auto *kernel = (const emu::kernel *)f;
  if (params || !extra || extra[0] != CU_LAUNCH_PARAM_BUFFER_POINTER || extra[2] != CU_LAUNCH_PARAM_BUFFER_SIZE ||
      extra[4] != CU_LAUNCH_PARAM_END)
    return CUDA_ERROR_INVALID_VALUE;
  size_t bytes = *(size_t *)extra[3];
  if (!kernel || bytes != kernel->param_bytes || !gx || !bx || bx > 1024 || gy * gz * by * bz != 1) {
    breach(string(kernel ? kernel->name : "a kernel") + " was launched with " + std::to_string(bytes) + " bytes of parameters, " +
           std::to_string(gx) + " blocks of " + std::to_string(bx));
    return CUDA_ERROR_INVALID_VALUE;
  }
  const char *p = (const char *)extra[1];
  return queue(s, task{kernel, gx, bx, std::vector<char>(p, p + bytes), {}});
}

} // extern "C"
