#include "forwarded.h"

#include <stdlib.h>
#include <string.h>

static int compare(const void *one, const void *other) {
  const struct text *a = one, *b = other;
  if (a->length != b->length) return a->length < b->length ? -1 : 1;
  return memcmp(a->ptr, b->ptr, a->length);
}

/* The next name of the list; `length` 0: there is none. */
static struct text next_name(struct text *list) {
  struct text name = {NULL, 0};
  const char *at = list->ptr, *end = list->ptr + list->length;
  uint64_t length;
  at += digits_of(*list, &length);
  if (at == end || *at++ != ':' || length > (uint64_t)(end - at)) return name;
  name = (struct text){at, (size_t)length};
  *list = (struct text){at + length, (size_t)(end - at) - name.length};
  return name;
}

bool forwarded_read(struct forwarded *forwarded, struct text list) {
  forwarded->count = 0;
  if (!list.length) return true;
  char *copy = malloc(list.length);
  if (!copy) return false;
  memcpy(copy, list.ptr, list.length);
  size_t count = 0;
  for (struct text left = {copy, list.length}; left.length; count++) {
    struct text name = next_name(&left);
    if (!name.length || count == MOST_FORWARDED) {
      free(copy);
      return false;
    }
    forwarded->names[count] = name;
  }
  qsort(forwarded->names, count, sizeof *forwarded->names, compare);
  forwarded->count = count;
  return true;
}

bool forwarded_has(const struct forwarded *forwarded, struct text model) {
  return bsearch(&model, forwarded->names, forwarded->count, sizeof model, compare);
}
