// The driver, its one device, and contexts.
#include "device.h"

#include <cstdio>
#include <cstring>

using namespace driver;

static const CUcontext primary = (CUcontext)0x10;

// How many devices there seem to be: all are this process, in one context.
static int devices() {
  const char *n = getenv("EMULATOR_DEVICES");
  return n ? atoi(n) : 1;
}

// EMULATOR_CAPABILITY: of which compute capability they seem to be, such as 86.
static int capability() {
  const char *n = getenv("EMULATOR_CAPABILITY");
  return n ? atoi(n) : 90;
}

// EMULATOR_NO_ATOMICS: "1": between no two devices, as over plain PCIe; "from-to":
// not that way. Kernels' additions for all devices are none then (memory_order.cc).
static bool has_atomics(int from, int to) {
  const char *no = getenv("EMULATOR_NO_ATOMICS");
  return !no || (string(no) != "1" && std::to_string(from) + "-" + std::to_string(to) != no);
}

namespace driver {

int version() {
  const char *v = getenv("EMULATOR_DRIVER");
  return v ? atoi(v) : 13000;
}

fabrics fabric() {
  const char *f = getenv("EMULATOR_FABRIC");
  return !f || version() < 12030 ? NO_FABRIC : f == string("refused") ? FABRIC_REFUSED : f == string("1") ? FABRIC : NO_FABRIC;
}

} // namespace driver

extern "C" {

CUresult cuInit(unsigned flags) {
  BEGIN(asked);
  d->initialised = true;
  return flags ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult cuDriverGetVersion(int *v) {
  BEGIN(asked);
  *v = version();
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int *n) {
  BEGIN(asked);
  if (!d->initialised) return CUDA_ERROR_NOT_INITIALIZED;
  *n = devices();
  return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice *out, int ordinal) {
  BEGIN(asked);
  if (!d->initialised) return CUDA_ERROR_NOT_INITIALIZED;
  *out = ordinal;
  return ordinal >= 0 && ordinal < devices() ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

CUresult cuDeviceGetName(char *name, int n, CUdevice) {
  BEGIN(asked);
  snprintf(name, n, "emulated device");
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetAttribute(int *v, CUdevice_attribute a, CUdevice) {
  BEGIN(asked);
  switch (a) {
  case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: *v = 2; break;
  case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: *v = capability() / 10; break;
  case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: *v = capability() % 10; break;
  case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED: *v = 1; break;
  case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED: *v = getenv("EMULATOR_NO_FD") == nullptr; break;
  case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED:
    if (version() < 12030) {
      breach("an attribute that the driver does not know");
      return CUDA_ERROR_INVALID_VALUE;
    }
    *v = fabric() != NO_FABRIC;
    break;
  case CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED: *v = 1; break;
  case CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED: *v = getenv("EMULATOR_NO_DMABUF") == nullptr; break;
  case CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS: *v = getenv("EMULATOR_NO_FLUSH") == nullptr; break;
  case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK: *v = 1024; break;
  default: *v = 0;
  }
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetUuid_v2(CUuuid *id, CUdevice dev) {
  BEGIN(asked);
  memset(id->bytes, 0x5e, sizeof id->bytes);
  id->bytes[0] += dev;
  return CUDA_SUCCESS;
}

CUresult cuDeviceTotalMem_v2(size_t *n, CUdevice) {
  BEGIN(asked);
  *n = 8ull << 30;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetPCIBusId(char *text, int n, CUdevice) {
  BEGIN(asked);
  snprintf(text, n, "0000:00:00.0");
  return CUDA_SUCCESS;
}

CUresult cuDeviceCanAccessPeer(int *can, CUdevice, CUdevice) {
  BEGIN(asked);
  *can = 1;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetP2PAttribute(int *v, CUdevice_P2PAttribute a, CUdevice from, CUdevice to) {
  BEGIN(asked);
  if (!d->initialised) return CUDA_ERROR_NOT_INITIALIZED;
  if (from == to || from < 0 || to < 0 || from >= devices() || to >= devices()) return CUDA_ERROR_INVALID_DEVICE;
  *v = a == CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED ? has_atomics(from, to) : a != CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK;
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *c, CUdevice) {
  BEGIN(asked);
  if (!d->initialised) return CUDA_ERROR_NOT_INITIALIZED;
  d->retained++;
  *c = primary;
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice) {
  BEGIN(asked);
  if (d->retained-- == 0) breach("the context was released too often");
  if (d->broken && !d->retained) reclaim();
  return CUDA_SUCCESS;
}

CUresult cuCtxPushCurrent_v2(CUcontext c) {
  BEGIN(asked);
  if (c != primary || !d->retained) return CUDA_ERROR_INVALID_CONTEXT;
  contexts.push_back(c);
  return CUDA_SUCCESS;
}

CUresult cuCtxPopCurrent_v2(CUcontext *c) {
  BEGIN(asked);
  if (contexts.empty()) {
    breach("cuCtxPopCurrent without a context");
    return CUDA_ERROR_INVALID_CONTEXT;
  }
  *c = contexts.back();
  contexts.pop_back();
  return CUDA_SUCCESS;
}

CUresult cuCtxSynchronize(void) {
  BEGIN(not_beside_capture);
  d->changed.wait(l, [] { return !any_work(); });
  return d->broken;
}

} // extern "C"
