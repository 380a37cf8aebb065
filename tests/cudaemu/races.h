// Finds what nothing orders. Threads of the emulator take turns, so each of
// them sees at once what others have written; on a device only fences, acquire
// and release, barriers and the ends of launches make it so. Here every access
// is compared with earlier ones to the same bytes: if two of different threads
// conflict, one of them writes, and no chain of these comes between them, that
// is a race, whatever the values were. So a missing fence is found in every
// order of turns in which both accesses happen.
//
// Plain accesses are told by the compiler (-fsanitize=thread makes calls that end
// here), those of memory_order.cuh tell themselves. What the host, other processes,
// events and memset do is not seen.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

namespace emu {

struct fibre;
struct running;

// Held while fibres take turns, and by calls of other threads that touch what
// fibres look at: which memory there is, what was found, the order of turns. The
// driver's lock may be held when it is taken, and is never taken under it.
extern std::mutex turns;

enum order { RELAXED = 0, ACQUIRE = 1, RELEASE = 2, ACQ_REL = 3, PEEK = 4 };
enum scope { GPU, SYS }; // a stream stands for a device of its own

// Where a primitive is used, and its part that a test can leave out.
struct site {
  const char *file;
  int line;
};

// The accesses of memory_order.cuh, carried out and remembered.
uint64_t load(const uint64_t *p, order o, scope s, site at);
void store(uint64_t *p, uint64_t v, order o, scope s, site at);
uint64_t add(uint64_t *p, uint64_t v, order o, scope s, site at);
uint32_t add(uint32_t *p, uint32_t v, order o, scope s, site at);
uint64_t swap_if_zero(uint64_t *p, uint64_t v, order o, scope s, site at);
uint64_t swap_if(uint64_t *p, uint64_t old, uint64_t v, order o, scope s, site at);
uint64_t bit_or(uint64_t *p, uint64_t v, order o, scope s, site at);
uint64_t bit_and(uint64_t *p, uint64_t v, order o, scope s, site at);
void fence(site at);

// What one thread, block or launch has seen; see races.cc.
struct thread_trace;
struct block_trace;
struct launch_trace;

launch_trace *launch_begins(unsigned stream, const char *kernel);
void launch_ends(launch_trace *l);
block_trace *block_begins(launch_trace *l, unsigned index, unsigned threads);
void block_ends(block_trace *b);
void barrier_passed(block_trace *b);
bool barrier_counts(site at); // false: a test leaves its order out
thread_trace *trace_of(block_trace *b, unsigned thread);
void shared_by_block(block_trace *b, const void *p, size_t bytes);

void copied(unsigned stream, void *to, const void *from, size_t bytes);
void filled(unsigned stream, void *to, size_t bytes);
void host_waited(unsigned stream);
void memory_appears(const void *p, size_t bytes);
void memory_goes(const void *p);

// Pinned memory of the host, and how often kernels read there, while a test
// counts: by loads of memory_order.cuh, and plain ones that the compiler tells of.
extern bool counting;
extern bool spoiling; // what mw_read_quad has read is gone
void pinned_appears(const void *p, size_t bytes);
void pinned_goes(const void *p);
void count_read(const void *p, bool plain);
void count(bool on); // begins anew
unsigned long counted(const char *kernel, const void *of); // null: all loads of memory_order.cuh

// For tests. Nothing of a device may run.
void watch(bool on);
std::string races();
std::string sites();
void leave_out(const char *site);

} // namespace emu
