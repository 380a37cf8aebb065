// Memory of the device, pinned memory, and copies.
#include "device.h"
#include "files.h"

#include <cstdlib>
#include <cstring>
#include <sys/mman.h>
#include <unistd.h>

using namespace driver;

extern "C" {

static CUresult allocate(CUdeviceptr *p, size_t bytes) {
  if (!bytes) return CUDA_ERROR_INVALID_VALUE;
  int fd = new_file(whole(bytes));
  *p = (CUdeviceptr)map_file(fd, whole(bytes), (void *)reserve(whole(bytes)));
  memset((void *)*p, 0xa5, bytes); // device memory is not cleared
  d->memory[*p] = {whole(bytes), fd, true};
  emu::memory_appears((void *)*p, bytes);
  return CUDA_SUCCESS;
}

CUresult cuMemAlloc_v2(CUdeviceptr *p, size_t bytes) {
  BEGIN(not_captured);
  return allocate(p, bytes);
}

CUresult cuMemAllocManaged(CUdeviceptr *p, size_t bytes, unsigned flags) {
  BEGIN(not_captured);
  return flags == CU_MEM_ATTACH_GLOBAL ? allocate(p, bytes) : CUDA_ERROR_INVALID_VALUE;
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
  emu::pinned_appears(*p, bytes);
  return CUDA_SUCCESS;
}

CUresult cuMemFreeHost(void *p) {
  BEGIN(not_captured);
  if (!d->pinned.erase(p)) {
    breach("cuMemFreeHost of what was not allocated");
    return CUDA_ERROR_INVALID_VALUE;
  }
  emu::pinned_goes(p);
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
  unsigned number = find(s) ? find(s)->number : 0;
  return short_task(s, [=] { return memset((void *)p, v, n), emu::filled(number, (void *)p, n), true; });
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

// The allocation that an address lies in; null: none.
static const std::pair<const CUdeviceptr, range> *allocation_of(CUdeviceptr p) {
  for (auto *list : {&d->memory, &d->mapped, &d->opened})
    for (auto &m : *list)
      if (p >= m.first && p < m.first + m.second.bytes) return &m;
  return nullptr;
}

CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *bytes, CUdeviceptr p) {
  BEGIN(needs_context);
  auto *m = allocation_of(p);
  if (!m) return CUDA_ERROR_NOT_FOUND;
  *base = m->first;
  *bytes = m->second.bytes;
  return CUDA_SUCCESS;
}

} // extern "C"
