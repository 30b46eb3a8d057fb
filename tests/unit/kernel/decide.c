/* Decides over a fleet's block, as a process beside the balancer would.

   decide KERNEL.so FLEET_STATE OPTIONS...: reads requests from standard input, a line each: the number of the options, model,
   rows, key, keyed, deadline, priority, number, time, seed, and who may be picked as ones and zeros, a digit a worker.
   Writes the worker, the propensity in hexadecimal and the fallbacks of each, and counts the pick in. Exits with 3 and
   the reason where a block does not fit. */
#include "kernel.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MOST_OPTIONS = 16, MOST_WORKERS = 1024 };

static void fail(int status, const char *what, const char *why) {
  fprintf(stderr, "%s: %s\n", what, why);
  exit(status);
}

static void *map(const char *path, int flags, uint64_t *bytes) {
  struct stat found;
  int file = open(path, O_RDWR);
  if (file < 0 || fstat(file, &found)) fail(2, path, "cannot be opened");
  void *block = mmap(NULL, (size_t)found.st_size, PROT_READ | PROT_WRITE, flags, file, 0);
  if (block == MAP_FAILED) fail(2, path, "cannot be mapped");
  close(file);
  *bytes = (uint64_t)found.st_size;
  return block;
}

static balancer_function *function(void *library, const char *name) {
  char symbol[160];
  snprintf(symbol, sizeof symbol, "balancer_%.128s", name);
  void *found = dlsym(library, symbol);
  if (!found) fail(2, symbol, "is not in the library");
  balancer_function *made;
  memcpy(&made, &found, sizeof made);
  return made;
}

int main(int count, char **arguments) {
  static struct balancer_call call;
  static int64_t of_fleet_state[BALANCER_FLEET_STATE_WORDS], of_call[BALANCER_CALL_WORDS];
  static int64_t of_options[MOST_OPTIONS][BALANCER_OPTIONS_WORDS];
  balancer_function *answers[MOST_OPTIONS];
  uint64_t bytes;
  if (count < 4 || count - 3 > MOST_OPTIONS) fail(2, arguments[0], "takes a library, fleet_state, and options");

  void *library = dlopen(arguments[1], RTLD_NOW);
  if (!library) fail(2, arguments[1], dlerror());
  const char *stamp = dlsym(library, "balancer_stamp");
  if (!stamp || strcmp(stamp, BALANCER_STAMP)) fail(3, arguments[1], "a library of other sources");

  struct balancer_block *fleet_state = map(arguments[2], MAP_SHARED, &bytes);
  enum balancer_status status = balancer_bind_fleet_state(fleet_state, bytes, of_fleet_state);
  if (status) fail(3, arguments[2], balancer_status_text(status));
  for (int i = 3; i < count; i++) {
    struct balancer_block *options = map(arguments[i], MAP_PRIVATE, &bytes);
    status = balancer_bind_options(options, bytes, of_options[i - 3]);
    if (status) fail(3, arguments[i], balancer_status_text(status));
    if (options->room_workers < fleet_state->workers) fail(3, arguments[i], "for fewer workers");
    answers[i - 3] = function(library, options->entry);
  }
  balancer_bind_call(&call, of_call);
  call.how = BALANCER_AT_ONCE;

  int which;
  char may[MOST_WORKERS + 1];
  bool *mask = balancer_at(fleet_state, BALANCER_DECISION_MASK);
  while (scanf("%d %" SCNd64 " %lf %" SCNu64 " %lf %lf %lf %" SCNu64 " %lf %" SCNu64 " %1024s", &which, &call.model,
               &call.rows, &call.key, &call.keyed, &call.deadline_s, &call.priority, &call.number, &call.now_s,
               &call.seed, may) == 11) {
    for (uint64_t w = 0; w < fleet_state->workers; w++) mask[w] = may[w] == '1';
    int64_t row = answers[which](of_fleet_state, of_options[which], of_call);
    printf("%" PRId64, row);
    if (row >= 0) {
      printf(" %a", call.propensity);
      for (size_t i = 0; i < sizeof call.fallbacks / sizeof *call.fallbacks; i++)
        if (call.fallbacks[i] >= 0) printf(" %" PRId64, call.fallbacks[i]);
    }
    printf("\n");
  }
  return 0;
}
