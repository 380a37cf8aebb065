// The uses of memory_order.cuh, by name, and the one that a test leaves out.
#include <cstring>

#include "trace.h"

namespace emu {

static std::map<std::string, unsigned> known_sites; // times used
static std::string left_out;

std::string name_of(site at) {
  const char *slash = strrchr(at.file, '/');
  return std::string(slash ? slash + 1 : at.file) + ":" + std::to_string(at.line);
}

// Whether a part of a primitive has its effect.
bool works(site at, const char *part) {
  if (!watching) return true;
  std::string name = name_of(at) + " " + part;
  known_sites[name]++;
  return name != left_out;
}

std::string sites() {
  std::lock_guard<std::mutex> l(turns);
  std::string text;
  for (auto &s : known_sites) text += s.first + "\n";
  return text;
}

void leave_out(const char *site) {
  std::lock_guard<std::mutex> l(turns);
  left_out = site;
}

void forget_sites() {
  known_sites.clear();
  left_out.clear();
}

} // namespace emu
