// Modules, functions, launches.
#include "device.h"

using namespace driver;

extern "C" {

CUresult cuModuleLoadDataEx(CUmodule *m, const void *image, unsigned, CUjit_option *, void **) {
  BEGIN(not_captured);
  if (!image) return CUDA_ERROR_INVALID_VALUE;
  *m = fresh<CUmodule>();
  d->modules.insert(*m);
  return CUDA_SUCCESS;
}

CUresult cuModuleUnload(CUmodule m) {
  BEGIN(not_captured);
  if (d->modules.erase(m)) return CUDA_SUCCESS;
  breach("cuModuleUnload of an unknown module");
  return CUDA_ERROR_INVALID_HANDLE;
}

// Every module has all kernels.
CUresult cuModuleGetFunction(CUfunction *f, CUmodule m, const char *name) {
  BEGIN(needs_context);
  if (!d->modules.count(m)) return CUDA_ERROR_INVALID_HANDLE;
  *f = (CUfunction)emu::find_kernel(name);
  return *f ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

CUresult cuLaunchKernel(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                        unsigned, CUstream s, void **params, void **extra) {
  BEGIN(needs_context);
  auto *kernel = (const emu::kernel *)f;
  if (params || !extra || extra[0] != CU_LAUNCH_PARAM_BUFFER_POINTER || extra[2] != CU_LAUNCH_PARAM_BUFFER_SIZE ||
      extra[4] != CU_LAUNCH_PARAM_END)
    return CUDA_ERROR_INVALID_VALUE;
  size_t bytes = *(size_t *)extra[3];
  if (!kernel || bytes != kernel->param_bytes || !gx || !bx || bx > 1024 || gy * gz * by * bz != 1) {
    breach(string(kernel ? kernel->name : "a kernel") + " was launched with " + std::to_string(bytes) + " bytes of parameters, " +
           std::to_string(gx) + " blocks of " + std::to_string(bx));
    return CUDA_ERROR_INVALID_VALUE;
  }
  d->changed.wait(l, [s] {
    stream *of = find(s);
    return !of || of->in || of->tasks.size() < d->depth;
  });
  const char *p = (const char *)extra[1];
  std::vector<char> copied(p, p + bytes);
  if (d->hasty == kernel->name) emu::hurry(copied.data());
  return queue(s, task{kernel, gx, bx, std::move(copied), {}});
}

} // extern "C"
