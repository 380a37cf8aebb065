// Memory that is shared: by descriptors, and by IPC handles.
#include "device.h"
#include "files.h"

#include <cstdio>
#include <cstring>
#include <sys/mman.h>
#include <unistd.h>

using namespace driver;

extern "C" {

CUresult cuMemCreate(CUmemGenericAllocationHandle *h, size_t bytes, const CUmemAllocationProp *prop, unsigned long long) {
  BEGIN(not_captured);
  if (bytes % page || prop->type != CU_MEM_ALLOCATION_TYPE_PINNED || prop->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
    return CUDA_ERROR_INVALID_VALUE;
  *h = d->next++;
  d->handles[*h] = {bytes, new_file(bytes), prop->allocFlags.gpuDirectRDMACapable != 0};
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
  d->mapped[p] = {bytes, d->handles[h].fd, d->handles[h].rdma};
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

// A dma-buf is the memory's file.
CUresult cuMemGetHandleForAddressRange(void *out, CUdeviceptr p, size_t bytes, CUmemRangeHandleType t, unsigned long long flags) {
  BEGIN(not_captured);
  if (t != CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD || flags || p % 4096 || bytes % 4096 || !bytes) return CUDA_ERROR_INVALID_VALUE;
  for (auto *all : {&d->mapped, &d->memory}) {
    auto at = all->find(p);
    if (at == all->end() || bytes > at->second.bytes) continue;
    if (!at->second.rdma || getenv("EMULATOR_NO_DMABUF")) return CUDA_ERROR_NOT_SUPPORTED;
    *(int *)out = dup(at->second.fd);
    return CUDA_SUCCESS;
  }
  return CUDA_ERROR_INVALID_VALUE;
}

CUresult cuFlushGPUDirectRDMAWrites(CUflushGPUDirectRDMAWritesTarget t, CUflushGPUDirectRDMAWritesScope s) {
  BEGIN(needs_context);
  if (t != CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX || s != CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER)
    return CUDA_ERROR_INVALID_VALUE;
  return CUDA_SUCCESS;
}

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

} // extern "C"
