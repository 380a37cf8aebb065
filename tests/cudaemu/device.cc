#include "device.h"

#include <unistd.h>

namespace driver {

device *const d = new device; // never freed: its thread may run until the process ends

thread_local std::vector<CUcontext> contexts;
thread_local CUstreamCaptureMode careful = CU_STREAM_CAPTURE_MODE_GLOBAL;

void breach(const string &what) { d->breaches.push_back(what); }

// As an error of a kernel does it: what runs is killed, and what waits never runs.
static void break_down(CUresult code) {
  d->broken = code;
  emu::kill_all();
  for (auto &s : d->streams) {
    s.second->runs = nullptr;
    s.second->tasks.clear();
  }
  d->changed.notify_all();
}

// Of a device that is broken these say what they ever do: they ask no context.
static bool asks_nothing(const string &call) {
  static const std::set<string> all = {"cuInit", "cuDriverGetVersion", "cuGetErrorName", "cuGetErrorString",
                                       "cuCtxPushCurrent_v2", "cuCtxPopCurrent_v2", "cuThreadExchangeStreamCaptureMode"};
  return all.count(call) || call.rfind("cuDevice", 0) == 0;
}

// Whether a call is to fail by a test's fault injection.
CUresult asked(const char *call) {
  d->calls[call]++;
  auto f = d->failures.find(call);
  if (f == d->failures.end() || f->second.after-- > 0) return asks_nothing(call) ? CUDA_SUCCESS : d->broken;
  failure is = f->second;
  d->failures.erase(f);
  if (is.breaks && d->retained) break_down(is.code); // else there is no context yet
  return is.later ? CUDA_SUCCESS : is.code;
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
    if (s.second->in && !s.second->in->invalid) return true;
  return false;
}

// Calls that end a capture: they would wait for what is captured.
CUresult not_beside_capture(const char *call) {
  if (CUresult r = needs_context(call)) return r;
  if (!capturing()) return CUDA_SUCCESS;
  breach(string(call) + " during capture");
  for (auto &s : d->streams)
    if (s.second->in) s.second->in->invalid = true;
  return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

// Calls that are unsafe beside a capture, unless the thread says that they are not.
CUresult not_captured(const char *call) {
  return careful == CU_STREAM_CAPTURE_MODE_RELAXED ? needs_context(call) : not_beside_capture(call);
}

// The legacy stream waits for all others, so for what is captured.
CUresult not_legacy(CUstream s, const char *call) {
  if (s || !capturing()) return CUDA_SUCCESS;
  breach(string(call) + " on the legacy stream during capture");
  return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
}

stream *find(CUstream s) {
  auto at = d->streams.find(s);
  return at == d->streams.end() ? nullptr : at->second.get();
}

void run_stream(stream *s) {
  if (s->runs && emu::finished(s->runs)) s->runs = nullptr;
  while (!s->runs && !s->tasks.empty()) {
    task &t = s->tasks.front();
    if (t.kernel) {
      if (!d->null) s->runs = emu::begin({t.kernel->run, t.blocks, t.threads, t.params.data(), t.params.size(), s->number, t.kernel->name});
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
    for (const string &found : emu::uneven_barriers()) breach(found);
    d->changed.notify_all();
  }
}

CUresult queue(CUstream handle, task t) {
  stream *s = find(handle);
  if (!s) return CUDA_ERROR_INVALID_HANDLE;
  if (CUresult r = not_legacy(handle, "a launch or a copy")) return r;
  if (s->in && s->in->invalid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  if (s->in)
    add_node(s, std::move(t));
  else if (d->broken)
    return CUDA_SUCCESS; // the launch comes before the error is told, and never runs
  else if (d->null && s->idle() && (t.kernel || t.act()))
    return CUDA_SUCCESS;
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

} // namespace driver
