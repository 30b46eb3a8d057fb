/* What it takes to read a request: cost REPEATS CHUNK_BYTES PATH CONTENT_TYPE FILE prints nanoseconds of the processor, of the body in FILE
   in chunks of so many bytes, and how much of it had to be held. */
#include "request.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MOST_BYTES = 1 << 22 };

static const char *const HEADERS[][2] = {
  {":method", "POST"},
  {":scheme", "http"},
  {":path", NULL},
  {":authority", "gateway:8080"},
  {"te", "trailers"},
  {"content-type", NULL},
  {"user-agent", "grpc-python/1.81.0 grpc-c/53.0.0 (linux; chttp2)"},
  {"grpc-accept-encoding", "identity, deflate, gzip"},
  {"x-request-id", "a1b2c3d4-0000-4000-8000-000000000000"},
};

static struct balancer_span names[sizeof HEADERS / sizeof *HEADERS], values[sizeof HEADERS / sizeof *HEADERS];

static const char *get(void *context, const char *name, size_t name_length, size_t *value_length) {
  (void)context;
  for (size_t i = sizeof names / sizeof *names; i-- > 0;) {
    if (names[i].length != name_length || memcmp(names[i].at, name, name_length)) continue;
    *value_length = values[i].length;
    return values[i].at;
  }
  return NULL;
}

/* Of this process alone, as others may be at work. */
static double now_ns(void) { return (double)clock() * (1e9 / CLOCKS_PER_SEC); }

int main(int count, char **arguments) {
  static struct balancer_reader reader;
  static char body[MOST_BYTES];
  struct balancer_headers headers = {get, NULL};
  struct balancer_refusal refusal;
  if (count != 6) return 2;
  long repeats = atol(arguments[1]);
  size_t chunk = (size_t)atol(arguments[2]), held = 0;
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    const char *value = HEADERS[i][1] ? HEADERS[i][1] : arguments[i == 2 ? 3 : 4];
    names[i] = (struct balancer_span){HEADERS[i][0], strlen(HEADERS[i][0])};
    values[i] = (struct balancer_span){value, strlen(value)};
  }
  FILE *file = fopen(arguments[5], "rb");
  if (!file || !chunk) return 2;
  size_t size = fread(body, 1, sizeof body, file);
  fclose(file);
  double start_ns = now_ns();
  for (long i = 0; i < repeats; i++) {
    enum balancer_progress progress = balancer_reader_start(&reader, headers, true);
    held = 0;
    for (size_t at = 0; at < size; at += chunk) {
      if (progress == BALANCER_MORE) held = size - at < chunk ? size : at + chunk;
      progress = balancer_reader_feed(&reader, body + at, size - at < chunk ? size - at : chunk);
    }
    balancer_reader_end(&reader);
    if (!balancer_reader_finish(&reader, &balancer_default_names, headers, &refusal)) {
      fprintf(stderr, "%s\n", refusal.text);
      return 1;
    }
  }
  printf("%.0f %zu\n", (now_ns() - start_ns) / (double)repeats, held);
  return 0;
}
