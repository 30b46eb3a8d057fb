/* Who may serve what, and where: file `directory-SERIAL` in the balancer's folder, written once and never changed.

   It is read whole into memory of this process and checked there, so that nobody changes it under a request. Rows are
   those of the fleet_state' generation that it names. See
   balancer/native/directory.py, which writes it, and layouts.py. */
#ifndef MODULE_DIRECTORY_H
#define MODULE_DIRECTORY_H

#include "abi.h"
#include "state.h"

enum { DIRECTORY_MOST_BYTES = 64 << 20 };

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
int64_t directory_row(const struct directory *directory, struct text endpoint, enum balancer_port port, int64_t guess);

#endif
