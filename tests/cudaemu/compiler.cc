// What -fsanitize=thread calls.
#include "trace.h"

#define PC __builtin_return_address(0)
#define WATCHED(name, bytes, is) \
  void __tsan_##name(void *p) { \
    if (emu::counting && emu::is == emu::READ) emu::count_read(p, true); \
    if (emu::thread_trace *t = emu::watched()) emu::touch(t, p, bytes, emu::is, PC); \
  }
#define WATCHED_ALL(bytes) \
  WATCHED(read##bytes, bytes, READ) \
  WATCHED(write##bytes, bytes, WRITE) \
  WATCHED(unaligned_read##bytes, bytes, READ) \
  WATCHED(unaligned_write##bytes, bytes, WRITE)

extern "C" {
WATCHED_ALL(1)
WATCHED_ALL(2)
WATCHED_ALL(4)
WATCHED_ALL(8)
WATCHED_ALL(16)
void __tsan_read_range(void *p, size_t bytes) {
  if (emu::counting) emu::count_read(p, true);
  if (emu::thread_trace *t = emu::watched()) emu::touch(t, p, bytes, emu::READ, PC);
}
void __tsan_write_range(void *p, size_t bytes) {
  if (emu::thread_trace *t = emu::watched()) emu::touch(t, p, bytes, emu::WRITE, PC);
}
void __tsan_init() {}
void __tsan_func_entry(void *) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void **, void *) {}
void __tsan_vptr_read(void **) {}
}
