// What the driver calls its errors.
#include "device.h"

using namespace driver;

namespace {

struct said {
  CUresult code;
  const char *name, *text;
};

#define SAID(code, text) {code, #code, text}

const said all[] = {
    SAID(CUDA_SUCCESS, "no error"),
    SAID(CUDA_ERROR_INVALID_VALUE, "invalid argument"),
    SAID(CUDA_ERROR_OUT_OF_MEMORY, "out of memory"),
    SAID(CUDA_ERROR_NOT_INITIALIZED, "initialization error"),
    SAID(CUDA_ERROR_DEINITIALIZED, "driver shutting down"),
    SAID(CUDA_ERROR_NO_DEVICE, "no CUDA-capable device is detected"),
    SAID(CUDA_ERROR_INVALID_DEVICE, "invalid device ordinal"),
    SAID(CUDA_ERROR_INVALID_CONTEXT, "invalid device context"),
    SAID(CUDA_ERROR_NO_BINARY_FOR_GPU, "no kernel image is available for execution on the device"),
    SAID(CUDA_ERROR_PEER_ACCESS_UNSUPPORTED, "peer access is not supported between these two devices"),
    SAID(CUDA_ERROR_INVALID_PTX, "a PTX JIT compilation failed"),
    SAID(CUDA_ERROR_UNSUPPORTED_PTX_VERSION, "the provided PTX was compiled with an unsupported toolchain."),
    SAID(CUDA_ERROR_INVALID_HANDLE, "invalid resource handle"),
    SAID(CUDA_ERROR_ILLEGAL_STATE, "the operation cannot be performed in the present state"),
    SAID(CUDA_ERROR_NOT_FOUND, "named symbol not found"),
    SAID(CUDA_ERROR_NOT_READY, "device not ready"),
    SAID(CUDA_ERROR_ILLEGAL_ADDRESS, "an illegal memory access was encountered"),
    SAID(CUDA_ERROR_ECC_UNCORRECTABLE, "uncorrectable ECC error encountered"),
    SAID(CUDA_ERROR_LAUNCH_TIMEOUT, "the launch timed out and was terminated"),
    SAID(CUDA_ERROR_HARDWARE_STACK_ERROR, "hardware stack error"),
    SAID(CUDA_ERROR_LAUNCH_FAILED, "unspecified launch failure"),
    SAID(CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, "too many resources requested for launch"),
    SAID(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, "peer access is already enabled"),
    SAID(CUDA_ERROR_CONTEXT_IS_DESTROYED, "context is destroyed"),
    SAID(CUDA_ERROR_NOT_PERMITTED, "operation not permitted"),
    SAID(CUDA_ERROR_NOT_SUPPORTED, "operation not supported"),
    SAID(CUDA_ERROR_SYSTEM_DRIVER_MISMATCH, "system has unsupported display driver / cuda driver combination"),
    SAID(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "operation not permitted when stream is capturing"),
    SAID(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, "operation failed due to a previous error during capture"),
    SAID(CUDA_ERROR_STREAM_CAPTURE_MERGE, "operation would result in a merge of separate capture sequences"),
    SAID(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED, "capture was not ended in the same stream as it began"),
    SAID(CUDA_ERROR_STREAM_CAPTURE_UNJOINED, "capturing stream has unjoined work"),
    SAID(CUDA_ERROR_STREAM_CAPTURE_ISOLATION, "dependency created on uncaptured work in another stream"),
    SAID(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, "operation would make the legacy stream depend on a capturing blocking stream"),
    SAID(CUDA_ERROR_CAPTURED_EVENT, "operation not permitted on an event last recorded in a capturing stream"),
    SAID(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD, "attempt to terminate a thread-local capture sequence from another thread"),
};

const said *find(CUresult code) {
  for (const said &s : all)
    if (s.code == code) return &s;
  return nullptr;
}

CUresult give(const char **out, const char *text) {
  *out = text;
  return text ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

} // namespace

extern "C" {

CUresult cuGetErrorName(CUresult e, const char **name) {
  BEGIN(asked);
  const said *s = find(e);
  return give(name, s ? s->name : nullptr);
}

CUresult cuGetErrorString(CUresult e, const char **text) {
  BEGIN(asked);
  const said *s = find(e);
  return give(text, s ? s->text : nullptr);
}

} // extern "C"
