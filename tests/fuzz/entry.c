/* The module's reader of requests, for any fuzzer that calls LLVMFuzzerTestOneInput.

   An input is: a path, how the body comes, and how many headers, a byte each; of each header which, how long, and its
   value; the rest is the body. Besides what sanitizers see, nothing that was read may be out of bounds, and neither how
   the body was cut into chunks nor what lay in memory before may make a difference. */
#include "request.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_HEADERS = 8, FRAMED = 1, BODILESS = 2 };

struct header {
  const char *name;
  const uint8_t *value;
  size_t length;
};

struct given {
  struct header headers[MOST_HEADERS + 2];
  size_t count;
};

static const char *const PATHS[] = {
  BALANCER_SERVICE "ModelInfer", BALANCER_SERVICE "ModelStreamInfer", BALANCER_SERVICE "ModelReady",
  BALANCER_SERVICE "ServerLive", "/v2/models/m/infer", "/v2/models/m%20x/versions/1/infer", "/v2/models/m/generate", NULL,
};

static const char *const NAMES[] = {
  "x-batch-rows", "x-routing-key", "x-sequence-id", "x-priority", "x-tenant", "x-deadline-ms", "grpc-timeout",
  "x-request-id", "inference-header-content-length", "content-encoding", ":path",
};

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(int holds, const char *what) {
  if (holds) return;
  fprintf(stderr, "does not hold: %s\n", what);
  abort();
}

static const char *get(void *context, const char *name, size_t name_length, size_t *value_length) {
  const struct given *given = context;
  for (size_t i = given->count; i-- > 0;) {
    const struct header *header = &given->headers[i];
    if (strlen(header->name) != name_length || memcmp(header->name, name, name_length)) continue;
    *value_length = header->length;
    return (const char *)header->value;
  }
  return NULL;
}

/* A copy without a byte to spare: who reads beyond it is seen. */
static uint8_t *alone(const uint8_t *data, size_t size) {
  uint8_t *copy = malloc(size ? size : 1);
  require(copy != NULL, "there is memory");
  if (size) memcpy(copy, data, size);
  return copy;
}

static void add(struct given *given, const char *name, const uint8_t *value, size_t length) {
  given->headers[given->count++] = (struct header){name, alone(value, length), length};
}

struct outcome {
  struct balancer_reader *reader;
  const struct features *request;
  struct balancer_refusal refusal;
};

static void read_all(struct outcome *outcome, struct given *given, int how, uint8_t before, const uint8_t *body,
                     size_t size, size_t chunk) {
  struct balancer_headers headers = {get, given};
  struct balancer_reader *reader = malloc(sizeof *reader);
  require(reader != NULL, "there is memory");
  memset(reader, before, sizeof *reader);
  balancer_reader_start(reader, headers, !(how & BODILESS));
  if (how & FRAMED) {
    const uint8_t frame[] = {0, (uint8_t)(size >> 24), (uint8_t)(size >> 16), (uint8_t)(size >> 8), (uint8_t)size};
    balancer_reader_feed(reader, frame, sizeof frame);
  }
  for (size_t at = 0; at < size; at += chunk) {
    size_t length = size - at < chunk ? size - at : chunk;
    uint8_t *copy = alone(body + at, length);
    balancer_reader_feed(reader, copy, length);
    free(copy);
  }
  require(balancer_reader_end(reader) != BALANCER_MORE, "the end of the body decides");
  outcome->reader = reader;
  outcome->request = balancer_reader_finish(reader, &balancer_default_names, headers, &outcome->refusal);
  balancer_reader_release(reader);
}

static void check(const struct outcome *outcome) {
  const struct features *request = outcome->request;
  if (!request) {
    require(*outcome->refusal.text && memchr(outcome->refusal.text, 0, sizeof outcome->refusal.text),
            "a refusal has words, which end");
    for (size_t i = 0; outcome->refusal.text[i]; i++)
      require(outcome->refusal.text[i] >= ' ' && outcome->refusal.text[i] < 0x7F, "a refusal is printable ASCII");
    return;
  }
  const struct text texts[] = {request->model, request->version, request->tenant, request->request_id, request->id};
  for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
    require(texts[i].length <= BALANCER_MAX_TEXT_BYTES, "texts are within bounds");
  require(request->rows >= 1 && request->rows <= BALANCER_MAX_ROWS, "rows are within bounds");
  require(request->priority <= BALANCER_MAX_PRIORITY, "the priority is within bounds");
  require(request->deadline_s >= 0, "the deadline is a time");
  require(!request->sequence || request->keyed, "a sequence has a key");
  require(request->kind == BALANCER_SERVER || request->kind == BALANCER_PER_SERVER || request->model.length,
          "a call about a model names one");
}

static void check_same(struct text one, struct text other) { require(same(one, other), "texts are the same"); }

static void compare(const struct outcome *one, const struct outcome *other) {
  const struct features *a = one->request, *b = other->request;
  require(!a == !b, "both are refused, or none");
  if (!a) {
    require(!strcmp(one->refusal.text, other->refusal.text), "refusals are the same");
    return;
  }
  require(a->kind == b->kind && a->grpc == b->grpc && a->sequence == b->sequence && a->keyed == b->keyed &&
            (!a->keyed || a->key == b->key) && !(a->rows < b->rows) && !(a->rows > b->rows) &&
            !(a->priority < b->priority) && !(a->priority > b->priority) &&
            !(a->deadline_s < b->deadline_s) && !(a->deadline_s > b->deadline_s),
          "numbers are the same");
  check_same(a->model, b->model);
  check_same(a->version, b->version);
  check_same(a->tenant, b->tenant);
  check_same(a->request_id, b->request_id);
  check_same(a->id, b->id);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  struct given given = {.count = 0};
  struct outcome whole, cut;
  if (size < 3) return 0;
  const char *path = PATHS[data[0] % (sizeof PATHS / sizeof *PATHS)];
  int how = data[1] & (FRAMED | BODILESS);
  size_t chunk = data[1] >> 2 ? data[1] >> 2 : 1;
  size_t count = data[2] % (MOST_HEADERS + 1);
  if (path) add(&given, ":path", (const uint8_t *)path, strlen(path));
  if (data[0] & 0x40 ? !path : path && path[1] == 'i') add(&given, "content-type", (const uint8_t *)"application/grpc", 16);
  data += 3;
  size -= 3;
  for (size_t i = 0; i < count && size > 2; i++) {
    size_t length = data[1] < size - 2 ? data[1] : size - 2;
    add(&given, NAMES[data[0] % (sizeof NAMES / sizeof *NAMES)], data + 2, length);
    data += 2 + length;
    size -= 2 + length;
  }
  read_all(&whole, &given, how, 0x00, data, size, size ? size : 1);
  read_all(&cut, &given, how, 0xA5, data, size, chunk);
  check(&whole);
  compare(&whole, &cut);
  free(whole.reader);
  free(cut.reader);
  for (size_t i = 0; i < given.count; i++) free((void *)(uintptr_t)given.headers[i].value);
  return 0;
}
