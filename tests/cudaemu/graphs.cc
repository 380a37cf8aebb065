// What is captured, and replayed.
#include "device.h"

using namespace driver;

// A node that no end of the stream comes behind belongs to a fork that was not joined.
static bool all_joined(const stream *s) {
  places seen, left = s->ends;
  while (!left.empty()) {
    size_t at = *left.begin();
    left.erase(left.begin());
    if (!seen.insert(at).second) continue;
    const places &after = s->in->into.nodes[at].after;
    left.insert(after.begin(), after.end());
  }
  return seen.size() == s->in->into.nodes.size();
}

static CUresult end_of(const stream *s) {
  const capture &in = *s->in;
  if (in.mode != CU_STREAM_CAPTURE_MODE_RELAXED && in.thread != std::this_thread::get_id())
    return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
  if (in.invalid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  return all_joined(s) ? CUDA_SUCCESS : CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
}

static bool is_chain(const graph &g) {
  for (size_t at = 0; at < g.nodes.size(); at++)
    if (g.nodes[at].after != (at ? places{at - 1} : places{})) return false;
  return true;
}

// A graph that is launched while its stream is captured becomes part of that graph.
static void add_graph(stream *s, const graph &g) {
  places before = s->ends;
  size_t first = s->in->into.nodes.size();
  for (const node &n : g.nodes) {
    places after = n.after.empty() ? before : places{};
    for (size_t at : n.after) after.insert(first + at);
    s->in->into.nodes.push_back({n.does, after});
    s->ends.insert(s->in->into.nodes.size() - 1);
  }
}

static CUresult run_graph(CUstream s, const graph &g) {
  if (!is_chain(g)) {
    auto run = std::make_shared<graph_run>();
    run->of = g;
    unsigned number = find(s)->number;
    return short_task(s, [=] { return graph_step(*run, number); });
  }
  for (const node &n : g.nodes)
    if (CUresult r = queue(s, n.does)) return r;
  return CUDA_SUCCESS;
}

extern "C" {

CUresult cuStreamBeginCapture_v2(CUstream s, CUstreamCaptureMode mode) {
  BEGIN(needs_context);
  if (!s || !find(s)) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  if (find(s)->in) return CUDA_ERROR_ILLEGAL_STATE;
  find(s)->in = std::make_shared<capture>(capture{{}, s, mode, std::this_thread::get_id()});
  find(s)->ends.clear();
  return CUDA_SUCCESS;
}

CUresult cuStreamEndCapture(CUstream s, CUgraph *g) {
  BEGIN(needs_context);
  *g = nullptr;
  if (!find(s) || !find(s)->in) return CUDA_ERROR_ILLEGAL_STATE;
  auto in = find(s)->in;
  if (in->origin != s) {
    in->invalid = true;
    return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
  }
  CUresult r = end_of(find(s));
  in->over = true;
  for (auto &other : d->streams)
    if (other.second->in == in) {
      other.second->in = nullptr;
      other.second->ends.clear();
    }
  if (r == CUDA_SUCCESS) d->graphs.insert(*g = (CUgraph) new graph(in->into));
  return r;
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
  if (!d->execs.count(e) || !find(s)) return CUDA_ERROR_INVALID_VALUE;
  if (!find(s)->in) return run_graph(s, *(graph *)e);
  if (find(s)->in->invalid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  add_graph(find(s), *(graph *)e);
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
