// What a context has, freed with it.
#include "device.h"

#include <cstdlib>
#include <sys/mman.h>
#include <unistd.h>

namespace driver {

static void unmap(std::map<CUdeviceptr, range> &all, bool with_files) {
  for (auto &m : all) {
    munmap((void *)m.first, m.second.bytes);
    emu::memory_goes((void *)m.first);
    if (with_files) close(m.second.fd);
  }
  all.clear();
}

static void reclaim_memory() {
  unmap(d->memory, true);
  unmap(d->reserved, false); // what is mapped lies in it
  unmap(d->opened, false);
  d->mapped.clear();
  for (auto &p : d->pinned) {
    emu::pinned_goes(p.first);
    free(p.first);
  }
  d->pinned.clear();
  for (auto &h : d->handles) close(h.second.fd);
  d->handles.clear();
}

void reclaim() {
  d->streams.clear();
  d->streams[nullptr].reset(new stream);
  d->events.clear();
  for (CUgraph g : d->graphs) delete (graph *)g;
  for (CUgraphExec e : d->execs) delete (graph *)e;
  d->graphs.clear();
  d->execs.clear();
  d->modules.clear();
  reclaim_memory();
  d->broken = CUDA_SUCCESS;
}

} // namespace driver
