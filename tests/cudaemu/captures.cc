// What is captured: nodes, and which of them come behind which.
#include "device.h"

namespace driver {

void add_node(stream *s, task t) {
  auto &nodes = s->in->into.nodes;
  nodes.push_back({std::move(t), std::move(s->ends)});
  s->ends = {nodes.size() - 1};
}

static CUresult spoil(const std::shared_ptr<capture> &of, CUresult code) {
  if (of) of->invalid = true;
  return code;
}

// A stream that waits for an event of a capture takes part in it. What is captured
// waits for nothing that is not.
CUresult joins(CUstream handle, const event &e) {
  stream *s = find(handle);
  if (!s) return CUDA_ERROR_INVALID_HANDLE;
  if (!e.in) return e.recorded ? spoil(s->in, CUDA_ERROR_STREAM_CAPTURE_ISOLATION) : CUDA_SUCCESS;
  if (e.in->over) return spoil(s->in, CUDA_ERROR_CAPTURED_EVENT);
  if (e.in->invalid) return spoil(s->in, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  if (!handle) return spoil(e.in, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
  if (s->in && s->in != e.in) {
    spoil(e.in, CUDA_SUCCESS);
    return spoil(s->in, CUDA_ERROR_STREAM_CAPTURE_MERGE);
  }
  s->in = e.in;
  s->ends.insert(e.ends.begin(), e.ends.end());
  return CUDA_SUCCESS;
}

static bool is_ready(const graph_run &r, size_t at) {
  for (size_t earlier : r.of.nodes[at].after)
    if (!r.ended.count(earlier)) return false;
  return true;
}

static bool node_step(graph_run &r, size_t at, unsigned stream) {
  const task &t = r.of.nodes[at].does;
  if (!t.kernel) return t.act();
  if (d->null) return true;
  if (r.begun.insert(at).second)
    r.runs[at] = emu::begin({t.kernel->run, t.blocks, t.threads, t.params.data(), t.params.size(), stream, t.kernel->name});
  return emu::finished(r.runs[at]);
}

// All nodes that nothing orders run at a time.
bool graph_step(graph_run &r, unsigned stream) {
  r.runs.resize(r.of.nodes.size());
  for (size_t at = 0; at < r.of.nodes.size(); at++)
    if (!r.ended.count(at) && is_ready(r, at) && node_step(r, at, stream)) r.ended.insert(at);
  return r.ended.size() == r.of.nodes.size();
}

} // namespace driver
