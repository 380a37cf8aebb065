// What is captured, and replayed.
#include "device.h"

using namespace driver;

extern "C" {

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

} // extern "C"
