/* What a decision and its end take as Envoy's module makes them.

   inside KERNEL.so FOLDER REQUESTS IN_FLIGHT MODEL...: prints nanoseconds by the clock, with the clock's own: median and 99th percentile of
   deciding (lock, counting in, endpoints), then of ending. A request comes every 50 µs, and each ends when IN_FLIGHT
   others have come. */
#define _GNU_SOURCE
#include "decide.h"

#include <stdio.h>
#include <stdlib.h>

enum { MOST_IN_FLIGHT = 1024, EVERY_NS = 50000, MOST_ROWS = 4 };

static int in_order(const void *one, const void *other) {
  uint64_t a = *(const uint64_t *)one, b = *(const uint64_t *)other;
  return (a > b) - (a < b);
}

static void print(uint64_t *taken_ns, size_t count, char end) {
  qsort(taken_ns, count, sizeof *taken_ns, in_order);
  printf("%llu %llu%c", (unsigned long long)taken_ns[count / 2], (unsigned long long)taken_ns[count * 99 / 100], end);
}

int main(int count, char **arguments) {
  static struct decision under_way[MOST_IN_FLIGHT];
  static struct features asks[MOST_IN_FLIGHT];
  const char *why = NULL;
  if (count < 6) return 2;
  size_t requests = strtoul(arguments[3], NULL, 10), in_flight = strtoul(arguments[4], NULL, 10);
  size_t warm_up = in_flight + requests / 10, models = (size_t)count - 5;
  uint64_t *deciding_ns = calloc(requests, sizeof *deciding_ns), *ending_ns = calloc(requests, sizeof *ending_ns);
  struct source *source = source_new(arguments[1], arguments[2], &why);
  struct attached *attached = source ? source_take(source) : NULL;
  if (!attached || !deciding_ns || !ending_ns || !in_flight || in_flight > MOST_IN_FLIGHT) {
    fprintf(stderr, "%s\n", why ? why : "no state to attach to, or numbers out of bounds");
    return 3;
  }
  uint64_t due_ns = now_ns();
  for (size_t i = 0; i < warm_up + requests; i++) {
    struct features *features = &asks[i % in_flight];
    struct decision *decision = &under_way[i % in_flight];
    while (now_ns() < due_ns) continue;
    due_ns += EVERY_NS;
    /* The balancer waits for this program, and cannot say that it lives. */
    atomic_store(&attached->control->heartbeat_ns, now_ns());
    uint64_t begin_ns = now_ns();
    if (i >= in_flight) {
      struct ending ending = {.http_status = 200, .grpc_status = 0, .latency_s = 0.005};
      size_t length = strcspn(decision->words, ",");
      memcpy(ending.endpoint, decision->words, length < sizeof ending.endpoint ? length : sizeof ending.endpoint - 1);
      begin_ns = now_ns();
      judge(&ending, TEXT("via_upstream"), true);
      if (!finish(source, attached, features, decision, &ending)) return 4;
    }
    uint64_t ended_ns = now_ns();
    const char *model = arguments[5 + i % models];
    *features = (struct features){.kind = 0, .grpc = true, .model = {model, strlen(model)}, .rows = (double)(1 + i % MOST_ROWS)};
    features->deadline_s = INFINITY;
    uint64_t start_ns = now_ns();
    decide(source, attached, features, decision);
    uint64_t decided_ns = now_ns();
    if (decision->answer != TAKEN) {
      fprintf(stderr, "answer %d: %.*s\n", decision->answer, (int)decision->length, decision->words);
      return 5;
    }
    if (i < warm_up) continue;
    ending_ns[i - warm_up] = ended_ns - begin_ns;
    deciding_ns[i - warm_up] = decided_ns - start_ns;
  }
  print(deciding_ns, requests, ' ');
  print(ending_ns, requests, '\n');
  return 0;
}
