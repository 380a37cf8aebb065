// Streams and events.
#include "device.h"

using namespace driver;

// What asks how far something has come spoils the capture that it is part of.
static CUresult not_in(const std::shared_ptr<capture> &in, CUresult code) {
  if (!in) return CUDA_SUCCESS;
  in->invalid = true;
  return code;
}

extern "C" {

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
  if (CUresult r = not_legacy(s, __func__)) return r;
  if (CUresult r = not_in(find(s)->in, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED)) return r;
  d->changed.wait(l, [s] { return find(s)->idle(); });
  emu::host_waited(find(s)->number);
  return d->broken;
}

CUresult cuStreamQuery(CUstream s) {
  BEGIN(not_captured);
  if (!find(s)) return CUDA_ERROR_INVALID_HANDLE;
  if (CUresult r = not_in(find(s)->in, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED)) return r;
  return find(s)->idle() ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUresult cuStreamWaitEvent(CUstream s, CUevent e, unsigned) {
  BEGIN(needs_context);
  if (!d->events.count(e)) return CUDA_ERROR_INVALID_HANDLE;
  if (d->events[e]->in || (find(s) && find(s)->in)) return joins(s, *d->events[e]);
  uint64_t recorded = d->events[e]->recorded; // a later record does not count
  return short_task(s, [=] { return !d->events.count(e) || d->events[e]->reached >= recorded; });
}

CUresult cuStreamIsCapturing(CUstream s, CUstreamCaptureStatus *status) {
  BEGIN(needs_context);
  if (!find(s)) return CUDA_ERROR_INVALID_HANDLE;
  auto &in = find(s)->in;
  *status = !in ? CU_STREAM_CAPTURE_STATUS_NONE : in->invalid ? CU_STREAM_CAPTURE_STATUS_INVALIDATED : CU_STREAM_CAPTURE_STATUS_ACTIVE;
  return CUDA_SUCCESS;
}

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode) {
  BEGIN(asked);
  std::swap(*mode, careful);
  return CUDA_SUCCESS;
}

CUresult cuEventCreate(CUevent *e, unsigned flags) {
  BEGIN(needs_context);
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
  stream *on = find(s);
  if (!on) return CUDA_ERROR_INVALID_HANDLE;
  if (on->in && on->in->invalid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  of->in = on->in;
  of->ends = on->ends;
  if (of->in) return CUDA_SUCCESS;
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
  if (CUresult r = not_in(d->events[e]->in, CUDA_ERROR_CAPTURED_EVENT)) return r;
  return d->events[e]->done ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUresult cuEventElapsedTime(float *ms, CUevent from, CUevent to) {
  BEGIN(needs_context);
  if (!d->events[from]->timing || !d->events[to]->timing) return CUDA_ERROR_INVALID_HANDLE;
  *ms = (d->events[to]->at_ns - d->events[from]->at_ns) / 1e6f;
  return CUDA_SUCCESS;
}

} // extern "C"
