// Device memory: files, so that other processes can map them.
#pragma once

#include <cuda.h>

#include <cstddef>

namespace driver {

const size_t page = 2 << 20;

size_t whole(size_t bytes); // pages
int new_file(size_t bytes);
void *map_file(int fd, size_t bytes, void *at);

// An address range of its own, aligned like a device's.
CUdeviceptr reserve(size_t bytes);

} // namespace driver
