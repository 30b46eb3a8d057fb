/* Texts as they arrive, byte by byte: checked, counted, and kept as far as a name may be long. */
#ifndef BALANCER_TEXT_H
#define BALANCER_TEXT_H

#include "bounds.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Bytes of somebody else's; `ptr` is NULL where there are none to speak of. */
struct text {
  const char *ptr;
  size_t length;
};

#define TEXT(literal) ((struct text){literal, sizeof(literal) - 1})

static inline bool same(struct text one, struct text other) {
  return one.length == other.length && (!one.length || !memcmp(one.ptr, other.ptr, one.length));
}

/* Writes it; returns where it ends. */
static inline char *put_text(char *at, struct text text) {
  if (text.length) memcpy(at, text.ptr, text.length);
  return at + text.length;
}

static inline bool begins(struct text text, const char *with) {
  size_t length = strlen(with);
  return text.length >= length && !memcmp(text.ptr, with, length);
}

static inline bool equals(struct text text, const char *other) {
  return text.length == strlen(other) && begins(text, other);
}

/* How many decimal digits it begins with, and what they say; what is beyond 64 bits is the largest. */
static inline size_t digits_of(struct text text, uint64_t *value) {
  size_t count = 0;
  for (*value = 0; count < text.length && text.ptr[count] >= '0' && text.ptr[count] <= '9'; count++) {
    uint64_t digit = (uint64_t)(text.ptr[count] - '0');
    *value = *value > (UINT64_MAX - digit) / 10 ? UINT64_MAX : *value * 10 + digit;
  }
  return count;
}

/* Where a decoder stands within a character of UTF-8: bytes to come, and between which the next one lies. */
struct balancer_utf8 {
  uint32_t point;
  uint8_t need, low, high;
};

/* A text in UTF-8. Only the first bytes are kept; a text that is longer than BALANCER_MAX_TEXT_BYTES is refused, with its
   first characters and how many it has. */
struct balancer_text {
  uint32_t bytes, characters; /* of all of it */
  struct balancer_utf8 decoder;
  bool broken; /* not UTF-8 */
  char kept[BALANCER_MAX_TEXT_BYTES];
};

/* How a value is quoted in a refusal: as Python's ascii() of its first 60 characters, and how many it has. */
enum { BALANCER_SHOWN_BYTES = BALANCER_SHOWN_CHARACTERS * 10 + 48 };

/* As much of it as is kept. */
static inline struct text kept_of(const struct balancer_text *text) {
  return (struct text){text->kept, text->bytes < sizeof text->kept ? text->bytes : sizeof text->kept};
}

void balancer_text_clear(struct balancer_text *text);
/* Bytes that are meant to be UTF-8. */
void balancer_text_add(struct balancer_text *text, const void *data, size_t length);
/* One character; surrogates too, as Python's "surrogatepass" writes them. */
void balancer_text_add_point(struct balancer_text *text, uint32_t point);
/* A header, whose bytes are Latin-1. */
void balancer_text_add_latin1(struct balancer_text *text, const char *data, size_t length);
/* What percent-encoding says, as Python's unquote(): what is no UTF-8 becomes U+FFFD. False: a character of it is not
   printable, or is a slash that was encoded. */
bool balancer_text_add_path(struct balancer_text *text, const char *data, size_t length);
/* Whether all of it, up to now, is UTF-8, and complete. */
bool balancer_text_valid(const struct balancer_text *text);
bool balancer_text_is(const struct balancer_text *text, const char *other);
void balancer_text_copy(struct balancer_text *to, const struct balancer_text *from);
void balancer_text_shown(const struct balancer_text *text, char shown[BALANCER_SHOWN_BYTES]);

/* Python's `mix`, `unit(mix(...))` and `key_of` (policies/hashing.py), bit for bit. */
uint64_t balancer_mix(uint64_t value);
double balancer_draw(uint64_t value);
uint64_t balancer_key_of(const struct balancer_text *text);

/* BLAKE2b of what comes in pieces. */
enum { BALANCER_HASH_BLOCK_BYTES = 128 };

struct balancer_hash {
  uint64_t state[8], so_far;
  uint32_t rest_bytes;
  uint8_t rest[BALANCER_HASH_BLOCK_BYTES];
};

void balancer_hash_start(struct balancer_hash *hash);
void balancer_hash_add(struct balancer_hash *hash, const void *data, size_t length);
/* Of all that came until now, with a digest of 8 bytes, read as a little-endian number. */
uint64_t balancer_hash_of(const struct balancer_hash *hash);

#endif
