// What tests ask of the emulator, beside what a driver has.
#include "device.h"

#include <cstring>

using namespace driver;

extern "C" {

// For tests: the n-th next call of a function fails.
void emulator_fail(const char *call, int after, int code) {
  lock l(d->m);
  d->failures[call] = {after, (CUresult)code, false, false};
}

// The same, and from then on all calls that ask the context fail, as after an error
// of a kernel: until the last reference to it is gone. later: not yet this call.
void emulator_break(const char *call, int after, int code, int later) {
  lock l(d->m);
  d->failures[call] = {after, (CUresult)code, true, later != 0};
}

// No call that was to fail does any more; whether one still was to.
int emulator_relent(void) {
  lock l(d->m);
  bool any = !d->failures.empty();
  d->failures.clear();
  return any;
}

// Frees what is left, as the end of a process does.
void emulator_reclaim(void) {
  lock l(d->m);
  reclaim();
  d->retained = 0;
}

// The functions that were called so far, one per line; to free.
char *emulator_called(void) {
  lock l(d->m);
  string text;
  for (auto &c : d->calls) text += c.first + "\n";
  return strdup(text.c_str());
}

unsigned long emulator_calls(const char *call) {
  lock l(d->m);
  return d->calls[call];
}

// From here on what kernels read is counted; or no more.
void emulator_count(int on) {
  lock l(d->m);
  emu::count(on);
}

// From here on what kernels read to read it once is overwritten behind them; or no more.
void emulator_spoil(int on) {
  lock l(d->m);
  emu::spoiling = on;
}

// How often a kernel has read in a pinned allocation; null: its loads of memory_order.cuh in all.
unsigned long emulator_counted(const char *kernel, const void *of) { return emu::counted(kernel, of); }

void emulator_seed(unsigned long seed, int yields_per_256, int resident_blocks) {
  lock l(d->m);
  emu::seed(seed, yields_per_256, resident_blocks);
}

// How many launches a stream takes before the next one waits.
void emulator_depth(int launches) {
  lock l(d->m);
  d->depth = launches;
  d->changed.notify_all();
}

// For tests of tests: a kernel in which every block says that all is done when one is.
// "": none.
void emulator_hurry(const char *kernel) {
  lock l(d->m);
  d->hasty = kernel;
}

// From here on accesses that nothing orders are breaches; or no more.
void emulator_watch(int on) {
  lock l(d->m);
  emu::watch(on);
}

// The uses of ordering that were seen while watching, one per line; to free.
char *emulator_sites(void) { return strdup(emu::sites().c_str()); }

// Leaves one of them without its effect on order.
void emulator_leave_out(const char *site) {
  lock l(d->m);
  emu::leave_out(site);
}

// What was broken or is left, one per line. The text is the caller's, to free.
char *emulator_report(void) {
  lock l(d->m);
  string text;
  for (auto &b : d->breaches) text += b + "\n";
  text += emu::races();
  auto left = [&](const char *what, size_t n) {
    if (n) text += string(what) + " left: " + std::to_string(n) + "\n";
  };
  left("streams", d->streams.size() - 1);
  left("events", d->events.size());
  left("graphs", d->graphs.size() + d->execs.size());
  left("modules", d->modules.size());
  left("allocations", d->memory.size());
  left("pinned allocations", d->pinned.size());
  left("handles of memory", d->handles.size());
  left("reserved ranges", d->reserved.size());
  left("mapped ranges", d->mapped.size());
  left("opened allocations", d->opened.size());
  left("references to the context", d->retained);
  d->breaches.clear();
  return strdup(text.c_str());
}

} // extern "C"
