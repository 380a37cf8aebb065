// Memory that is shared: by descriptors, by fabric handles, and by IPC handles.
#include "device.h"
#include "files.h"

#include <cstdio>
#include <cstring>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

using namespace driver;

static const int descriptor = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, fabric_handle = CU_MEM_HANDLE_TYPE_FABRIC;

// Whether memory may be made for handles of these types, and by this process.
static CUresult may_make(int types) {
  if (types & ~(descriptor | fabric_handle)) return CUDA_ERROR_INVALID_VALUE;
  if (types & descriptor && getenv("EMULATOR_NO_FD")) return CUDA_ERROR_NOT_SUPPORTED;
  if (!(types & fabric_handle) || fabric() == FABRIC) return CUDA_SUCCESS;
  return fabric() == FABRIC_REFUSED ? CUDA_ERROR_NOT_PERMITTED : CUDA_ERROR_NOT_SUPPORTED;
}

// A fabric handle names process, descriptor and file: it keeps nothing, and with
// another file under that descriptor it names nothing.
struct emulated_fabric {
  char magic[8];
  pid_t pid;
  int fd, channel;
  ino_t file;
};
static_assert(sizeof(emulated_fabric) <= sizeof(CUmemFabricHandle), "it goes by a handle");

// EMULATOR_IMEX is the number of this process's channel.
static int channel() {
  const char *n = getenv("EMULATOR_IMEX");
  return n ? atoi(n) : 0;
}

static void write_fabric(void *out, int fd) {
  struct stat s;
  fstat(fd, &s);
  emulated_fabric e{"fabric", getpid(), fd, channel(), s.st_ino};
  memset(out, 0, sizeof(CUmemFabricHandle));
  memcpy(out, &e, sizeof e);
}

// What a fabric handle names, open; -1 with why there is nothing.
static int open_fabric(const void *handle, CUresult &why) {
  emulated_fabric e;
  memcpy(&e, handle, sizeof e);
  why = CUDA_ERROR_INVALID_VALUE;
  if (memcmp(e.magic, "fabric", 7)) return -1;
  if (fabric() != FABRIC || e.channel != channel()) {
    why = fabric() == NO_FABRIC ? CUDA_ERROR_NOT_SUPPORTED : CUDA_ERROR_NOT_PERMITTED;
    return -1;
  }
  string path = "/proc/" + std::to_string(e.pid) + "/fd/" + std::to_string(e.fd);
  int fd = open(path.c_str(), O_RDWR | O_CLOEXEC);
  struct stat s;
  if (fd < 0 || (fstat(fd, &s) == 0 && s.st_ino == e.file)) return fd;
  close(fd);
  return -1;
}

extern "C" {

CUresult cuMemCreate(CUmemGenericAllocationHandle *h, size_t bytes, const CUmemAllocationProp *prop, unsigned long long) {
  BEGIN(not_captured);
  if (bytes % page || prop->type != CU_MEM_ALLOCATION_TYPE_PINNED || prop->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
    return CUDA_ERROR_INVALID_VALUE;
  if (CUresult no = may_make(prop->requestedHandleTypes)) return no;
  *h = d->next++;
  d->handles[*h] = {bytes, new_file(bytes), prop->allocFlags.gpuDirectRDMACapable != 0, (int)prop->requestedHandleTypes};
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

CUresult cuMemGetAllocationGranularity(size_t *n, const CUmemAllocationProp *prop, CUmemAllocationGranularity_flags) {
  BEGIN(needs_context);
  if (prop->requestedHandleTypes & ~(descriptor | fabric_handle)) return CUDA_ERROR_INVALID_VALUE;
  *n = page;
  return CUDA_SUCCESS;
}

CUresult cuMemExportToShareableHandle(void *out, CUmemGenericAllocationHandle h, CUmemAllocationHandleType t, unsigned long long flags) {
  BEGIN(not_captured);
  auto at = d->handles.find(h);
  if (flags || at == d->handles.end() || !(at->second.types & t)) return CUDA_ERROR_INVALID_VALUE;
  if (t == descriptor)
    *(int *)out = dup(at->second.fd);
  else if (t == fabric_handle)
    write_fabric(out, at->second.fd);
  else
    return CUDA_ERROR_INVALID_VALUE;
  return CUDA_SUCCESS;
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *h, void *from, CUmemAllocationHandleType t) {
  BEGIN(not_captured);
  CUresult why = CUDA_ERROR_INVALID_VALUE;
  int own = t == descriptor ? dup((int)(intptr_t)from) : t == fabric_handle ? open_fabric(from, why) : -1;
  if (own < 0) return why;
  off_t bytes = lseek(own, 0, SEEK_END);
  if (bytes < 0) {
    close(own);
    return CUDA_ERROR_INVALID_VALUE;
  }
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
