// Grids of threads as fibres of one operating-system thread, chosen by a seeded
// generator: every run with one seed takes the same turns as long as no other
// process changes memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "races.h"

namespace emu {

struct dim {
  unsigned x, y, z;
};

struct block;

// One thread of a grid.
struct fibre {
  dim thread_idx, block_idx, block_dim, grid_dim;
  block *of;
  struct context *state;
  enum { RUNS, AT_BARRIER, AT_SHUFFLE, PAUSED, ENDED } is;
  unsigned waits_for; // generation of a shuffle
  struct exchange *at;
  thread_trace *trace;
  site waits_at; // of a barrier
};

// A kernel by its name, with its parameters by address.
using entry = void (*)(const void *params);

struct launch {
  entry run;
  unsigned blocks, threads;
  const void *params;
  size_t param_bytes;
  unsigned stream; // a number of the stream's
  const char *name;
};

// Begins a launch; its blocks become resident as there is room. The result is
// for finished() and ends with it.
struct running;
running *begin(const launch &l);
bool finished(running *r); // true once, when it is freed
void kill_all();           // no launch goes on; all are freed

// Lets resident fibres take turns. Returns false if all that is left waits for
// something outside.
bool turn(int steps);

// Barriers at which threads of a block met others that waited at another one: what a device
// does then is not defined. One line each; they are told once.
std::vector<std::string> uneven_barriers();

void seed(uint64_t value, int yields_per_256, int resident_blocks);

// For kernels.
fibre *self();
const char *running_kernel(); // the name; null: it is no fibre that asks
void barrier(site at);
uint32_t shuffle_xor(uint32_t lanes, uint32_t v, int apart);
void *shared(const void *key, size_t bytes);
void maybe_yield();
void pause();
uint64_t now_ns();

} // namespace emu
