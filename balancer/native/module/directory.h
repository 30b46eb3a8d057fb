/* Who may serve what, and where: file `directory-SERIAL` in the balancer's folder, written once and never changed.

   It is read whole into memory of this process and checked there, so that nobody changes it under a request. Rows are
   those of the books' generation that it names. See balancer/front/directory.py, which writes it. */
#ifndef MODULE_DIRECTORY_H
#define MODULE_DIRECTORY_H

#include "abi.h"
#include "state.h"

#define DIRECTORY_MAGIC UINT64_C(0x79726f7463657269)
enum { DIRECTORY_VERSION = 1, DIRECTORY_MOST_BYTES = 64 << 20, NO_ENTRY = -1 };
enum directory_flag { REPORTS_REQUIRED = 1, STICKY_KEYS = 2, POLICY_NEEDS_KEY = 4 };
enum decider { POLICY, STICKY, SEQUENCES, DECIDERS };
enum named_header { MODEL, ROWS, KEY, SEQUENCE, PRIORITY, TENANT, DEADLINE, NAMED_HEADERS };

/* A text among the strings. */
struct piece {
  uint32_t at, length;
};

struct directory_head {
  uint64_t magic, version, bytes;
  char stamp[16];
  uint64_t serial, generation, workers, entries, masks, strings, flags;
  int64_t any_model; /* entry for models that are not listed; NO_ENTRY: they are unknown */
  int64_t no_model;  /* entry for calls that concern a server */
  struct piece policy;
  struct piece options[DECIDERS]; /* names of files */
  struct piece headers[NAMED_HEADERS];
};

struct endpoints {
  char of[2][ENDPOINT_BYTES]; /* REST, gRPC; ends with a zero */
};

struct entry {
  uint64_t hash; /* of model and version; entries are sorted by it */
  struct piece model, version;
  struct piece quoted; /* the model as Python quotes it */
  int64_t column;
  uint32_t servable, members; /* masks */
  uint64_t loaded;            /* 1: some worker has a version of the model */
};

struct directory {
  struct directory_head head;
  const struct endpoints *workers;
  const struct entry *entries;
  const uint8_t *masks; /* of as many bytes as there are workers, each 0 or 1 */
  const char *strings;
  void *memory;
};

/* A file's content, to be freed; null: there is none, or more than `most` bytes. */
void *content_of(int folder, const char *name, size_t most, size_t *bytes);
/* Tells what the balancer wrote from anything else. */
EXPORTED uint64_t balancer_state_digest(const void *content, uint64_t bytes);

/* Null where there is none of that serial that can be used; `why` says so then. */
struct directory *directory_load(int folder, uint64_t serial, const char **why);
void directory_free(struct directory *directory);

const struct entry *directory_find(const struct directory *directory, struct text model, struct text version);
static inline struct text directory_text(const struct directory *directory, struct piece piece) {
  return (struct text){directory->strings + piece.at, piece.length};
}
static inline const uint8_t *directory_mask(const struct directory *directory, uint32_t mask) {
  return directory->masks + (size_t)mask * directory->head.workers;
}
/* Row of the worker at that address; -1: none is listed there. `guess` is looked at first. */
int64_t directory_row(const struct directory *directory, struct text endpoint, bool grpc, int64_t guess);

#endif
