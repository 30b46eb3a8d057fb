/* Inflates what a client compressed, as its bytes arrive: gzip (RFC 1952) or zlib (RFC 1950), which their first byte tells
   apart. Checksums are left to whoever gets the message. */
#ifndef BALANCER_INFLATE_H
#define BALANCER_INFLATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
  BALANCER_WINDOW_BYTES = 32768,
  BALANCER_FAST_BITS = 9,
  BALANCER_LITERALS = 288,
  BALANCER_LENGTHS = 320, /* of codes in a block: 286 and 30 */
};

enum balancer_inflated { BALANCER_INFLATES, BALANCER_INFLATED, BALANCER_NOT_DEFLATED };

/* A Huffman code: short ones by a table, long ones bit by bit. */
struct balancer_code {
  uint16_t fast[1 << BALANCER_FAST_BITS]; /* symbol << 4 | bits; 0: none so short */
  uint16_t count[16], symbols[BALANCER_LITERALS];
};

struct balancer_inflate {
  const uint8_t *in, *end; /* of the bytes at hand */
  uint64_t bits, given, made, checked;
  uint32_t count;    /* of bits */
  uint32_t at;       /* in the window */
  uint32_t left;     /* to come of a stored block, a copy or a field of the head or the tail */
  uint32_t distance; /* of a copy */
  uint16_t literals, distances, codes, length;
  uint8_t state, flags, tail;
  bool last;
  uint8_t lengths[BALANCER_LENGTHS];
  struct balancer_code literal, distant;
  uint8_t window[BALANCER_WINDOW_BYTES];
};

/* NULL: as many as may be at once are under way (or there is no memory). */
struct balancer_inflate *balancer_inflate_new(void);
void balancer_inflate_free(struct balancer_inflate *inflate);

void balancer_inflate_give(struct balancer_inflate *inflate, const uint8_t *data, size_t length);
/* The next bytes that come of what was given; they lie in the window until it is called again. Again and again until
   there are none. INFLATED: it is over, and nothing follows it. */
enum balancer_inflated balancer_inflate_take(struct balancer_inflate *inflate, const uint8_t **out, size_t *length);

#endif
