/* understand MEMORY: reads requests as the module for Envoy does, into memory full of that byte, and says what it understood.

   Of each request on standard input: how many headers, each name and value, whether there is a body, how many chunks it
   comes in, and each chunk; numbers are 32 bits of the machine's own order, and precede the bytes that they count. Writes a
   line for each. Chunks and headers lie in memory of their own, so that a sanitizer sees who reads beyond them. */
#include "request.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct bytes {
  uint32_t length;
  char *at;
};

struct given {
  uint32_t count;
  struct bytes *names, *values;
};

static bool read_number(uint32_t *number) { return fread(number, sizeof *number, 1, stdin) == 1; }

static struct bytes read_bytes(void) {
  struct bytes found = {0, NULL};
  if (!read_number(&found.length)) exit(2);
  found.at = malloc(found.length ? found.length : 1);
  if (!found.at || fread(found.at, 1, found.length, stdin) != found.length) exit(2);
  return found;
}

static const char *get(void *context, const char *name, size_t name_length, size_t *value_length) {
  const struct given *given = context;
  for (uint32_t i = given->count; i-- > 0;) {
    if (given->names[i].length != name_length || memcmp(given->names[i].at, name, name_length)) continue;
    *value_length = given->values[i].length;
    return given->values[i].at;
  }
  return NULL;
}

static void write_span(struct text span) {
  putchar(' ');
  putchar('=');
  for (size_t i = 0; i < span.length; i++) printf("%02x", (unsigned char)span.ptr[i]);
}

/* Size of the body, and of the prompt, and where its beginnings end, with their hashes. */
static void write_prompt(const struct features *request) {
  const struct balancer_prompt *prompt = request->prompt;
  printf(" =");
  if (!prompt) return;
  printf("%" PRIu64 ",%" PRIu64 ",%" PRIu32, request->body_bytes, prompt->bytes, prompt->max_tokens);
  for (uint32_t i = 0; i < prompt->count; i++)
    printf(",%" PRIu64 ",%" PRIu64, prompt->checkpoints[i].hash, prompt->checkpoints[i].bytes);
}

static void answer(struct balancer_reader *reader, struct balancer_headers headers, uint64_t held) {
  static const char *const kinds[] = {"inference", "stream", "model", "server", "per_server"};
  struct balancer_refusal refusal;
  const struct features *request = balancer_reader_finish(reader, &balancer_default_names, headers, &refusal);
  if (!request) {
    printf("refused %d", reader->features.grpc);
    write_span(refusal.field);
    write_span((struct text){refusal.text, strlen(refusal.text)});
  } else {
    printf("%s %d %d %d %" PRIu64 " %a %u %u %" PRIu64, kinds[request->kind], request->grpc, request->sequence,
           request->keyed, request->key, request->deadline_s, (unsigned)request->rows, (unsigned)request->priority, held);
    write_prompt(request);
    const struct text texts[] = {request->model, request->version, request->tenant, request->request_id, request->id};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) write_span(texts[i]);
  }
  putchar('\n');
  fflush(stdout);
}

static void one(struct given *given, int memory) {
  struct balancer_headers headers = {get, given};
  uint32_t has_body, chunks;
  uint64_t held = 0;
  if (!read_number(&has_body) || !read_number(&chunks)) exit(2);
  struct balancer_reader *reader = malloc(sizeof *reader);
  if (!reader) exit(2);
  memset(reader, memory, sizeof *reader); /* nothing may be taken for granted */
  enum balancer_progress progress = balancer_reader_start(reader, headers, has_body);
  for (uint32_t i = 0; i < chunks; i++) {
    struct bytes chunk = read_bytes();
    if (progress == BALANCER_MORE) held += chunk.length;
    progress = balancer_reader_feed(reader, chunk.at, chunk.length);
    free(chunk.at);
  }
  balancer_reader_end(reader);
  answer(reader, headers, held);
  balancer_reader_release(reader);
  free(reader);
}

int main(int count, char **arguments) {
  struct given given;
  if (count != 2) return 2;
  int memory = (int)strtol(arguments[1], NULL, 16);
  while (read_number(&given.count)) {
    given.names = calloc(given.count + 1, sizeof *given.names);
    given.values = calloc(given.count + 1, sizeof *given.values);
    if (!given.names || !given.values) return 2;
    for (uint32_t i = 0; i < given.count; i++) {
      given.names[i] = read_bytes();
      given.values[i] = read_bytes();
    }
    one(&given, memory);
    for (uint32_t i = 0; i < given.count; i++) {
      free(given.names[i].at);
      free(given.values[i].at);
    }
    free(given.names);
    free(given.values);
  }
  return 0;
}
