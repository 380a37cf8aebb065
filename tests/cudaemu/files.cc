#include "files.h"

#include <cstdlib>
#include <sys/mman.h>
#include <unistd.h>

namespace driver {

int new_file(size_t bytes) {
  int fd = memfd_create("emulated-device", MFD_CLOEXEC);
  if (fd < 0 || ftruncate(fd, bytes)) abort();
  return fd;
}

void *map_file(int fd, size_t bytes, void *at) {
  return mmap(at, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | (at ? MAP_FIXED : 0), fd, 0);
}

size_t whole(size_t bytes) { return (bytes + page - 1) / page * page; }

CUdeviceptr reserve(size_t bytes) {
  char *p = (char *)mmap(nullptr, bytes + page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) abort();
  return ((CUdeviceptr)p + page - 1) / page * page;
}

} // namespace driver
