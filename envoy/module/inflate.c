/* A machine of states over bits. Each step (a head, a length of a code, a symbol with what belongs to it) is taken whole,
   or not yet: none needs more bits than the 64 that are held, so it can stop behind any byte. */
#include "inflate.h"

#include "bounds.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum state {
  MAGIC,
  GZIP_HEAD,
  EXTRA_LENGTH,
  EXTRA,
  NAME,
  COMMENT,
  HEAD_SUM,
  BLOCK,
  STORED_LENGTH,
  STORED,
  COUNTS,
  CODE_LENGTHS,
  LENGTHS,
  SYMBOL,
  COPY,
  TAIL,
  OVER,
  BAD
};

enum { FLAG_SUM = 2, FLAG_EXTRA = 4, FLAG_NAME = 8, FLAG_COMMENT = 16 };
enum { GZIP_HEAD_BYTES = 8, GZIP_TAIL_BYTES = 8, ZLIB_TAIL_BYTES = 4 };
enum { WINDOW_MASK = BALANCER_WINDOW_BYTES - 1, FAST = 1 << BALANCER_FAST_BITS, MOST_BITS = 15, END_OF_BLOCK = 256 };
enum { SHORT = -1, NONE = -2 }; /* instead of a symbol: more bits are needed; there is no such code */
/* Codes without what they code: a compressor sends no more than this besides twice what it makes. */
enum { MOST_IDLE_BYTES = 65536 };

static _Atomic unsigned under_way;

struct balancer_inflate *balancer_inflate_new(void) {
  struct balancer_inflate *inflate = NULL;
  if (atomic_fetch_add(&under_way, 1) < BALANCER_MAX_INFLATING) inflate = malloc(sizeof *inflate);
  if (!inflate) {
    atomic_fetch_sub(&under_way, 1);
    return NULL;
  }
  memset(inflate, 0, offsetof(struct balancer_inflate, lengths));
  return inflate;
}

void balancer_inflate_free(struct balancer_inflate *inflate) {
  if (!inflate) return;
  free(inflate);
  atomic_fetch_sub(&under_way, 1);
}

void balancer_inflate_give(struct balancer_inflate *inflate, const uint8_t *data, size_t length) {
  inflate->in = data;
  inflate->end = data + length;
  inflate->given += length;
}

static void refill(struct balancer_inflate *inflate) {
  while (inflate->count <= 56 && inflate->in < inflate->end) {
    inflate->bits |= (uint64_t)*inflate->in++ << inflate->count;
    inflate->count += 8;
  }
}

static bool has(struct balancer_inflate *inflate, uint32_t bits) {
  if (inflate->count < bits) refill(inflate);
  return inflate->count >= bits;
}

static uint32_t use(struct balancer_inflate *inflate, uint32_t bits) {
  uint32_t value = (uint32_t)(inflate->bits & ((1ULL << bits) - 1));
  inflate->bits >>= bits;
  inflate->count -= bits;
  return value;
}

static bool enter(struct balancer_inflate *inflate, enum state state) {
  inflate->state = (uint8_t)state;
  return true;
}

static bool bad(struct balancer_inflate *inflate) { return enter(inflate, BAD); }

/* Takes lengths for a code; false: there are more codes than such lengths allow, or fewer, but for a single one. */
static bool make(struct balancer_code *code, const uint8_t *lengths, uint32_t count) {
  uint16_t next[MOST_BITS + 1], offsets[MOST_BITS + 1];
  int32_t left = 1;
  uint32_t most = 0;
  memset(code->count, 0, sizeof code->count);
  memset(code->fast, 0, sizeof code->fast);
  for (uint32_t i = 0; i < count; i++) code->count[lengths[i]]++;
  code->count[0] = 0;
  offsets[1] = next[1] = 0;
  for (uint32_t bits = 1; bits <= MOST_BITS; bits++) {
    left = 2 * left - code->count[bits];
    if (left < 0) return false;
    if (code->count[bits]) most = bits;
    if (bits == MOST_BITS) break;
    offsets[bits + 1] = (uint16_t)(offsets[bits] + code->count[bits]);
    next[bits + 1] = (uint16_t)((next[bits] + code->count[bits]) << 1);
  }
  if (left > 0 && most > 1) return false;
  for (uint32_t i = 0; i < count; i++) {
    uint32_t bits = lengths[i], reversed = 0, value;
    if (!bits) continue;
    code->symbols[offsets[bits]++] = (uint16_t)i;
    value = next[bits]++;
    if (bits > BALANCER_FAST_BITS) continue;
    for (uint32_t bit = 0; bit < bits; bit++) reversed |= (value >> bit & 1) << (bits - 1 - bit);
    for (; reversed < FAST; reversed += 1U << bits) code->fast[reversed] = (uint16_t)(i << 4 | bits);
  }
  return true;
}

/* The symbol that the bits begin with, of which so many are there. */
static int decode(const struct balancer_code *code, uint64_t bits, uint32_t there, uint32_t *used) {
  uint32_t entry = code->fast[bits & (FAST - 1)], value = 0, first = 0, index = 0;
  if (entry) {
    *used = entry & 15;
    return *used <= there ? (int)(entry >> 4) : SHORT;
  }
  for (uint32_t length = 1; length <= MOST_BITS; length++) {
    if (length > there) return SHORT;
    value |= bits & 1;
    bits >>= 1;
    if (value < first + code->count[length]) {
      *used = length;
      return code->symbols[index + value - first];
    }
    index += code->count[length];
    first = (first + code->count[length]) << 1;
    value <<= 1;
  }
  return NONE;
}

static bool begin_blocks(struct balancer_inflate *inflate) { return enter(inflate, BLOCK); }

static bool magic(struct balancer_inflate *inflate) {
  if (!has(inflate, 16)) return false;
  uint32_t both = use(inflate, 16), first = both & 0xFF, second = both >> 8;
  if (first == 0x1F && second == 0x8B) {
    inflate->tail = GZIP_TAIL_BYTES;
    inflate->left = GZIP_HEAD_BYTES;
    return enter(inflate, GZIP_HEAD);
  }
  /* Deflated, with a window of 32 KiB at most, and no dictionary. */
  if ((first & 15) != 8 || first >> 4 > 7 || (first << 8 | second) % 31 || second & 0x20) return bad(inflate);
  inflate->tail = ZLIB_TAIL_BYTES;
  return begin_blocks(inflate);
}

static bool gzip_head(struct balancer_inflate *inflate) {
  for (; inflate->left; inflate->left--) {
    if (!has(inflate, 8)) return false;
    uint32_t byte = use(inflate, 8);
    if (inflate->left == GZIP_HEAD_BYTES && byte != 8) return bad(inflate);
    if (inflate->left != GZIP_HEAD_BYTES - 1) continue;
    if (byte & 0xE0) return bad(inflate);
    inflate->flags = (uint8_t)byte;
  }
  return enter(inflate, EXTRA_LENGTH);
}

static bool extra_length(struct balancer_inflate *inflate) {
  if (inflate->flags & FLAG_EXTRA) {
    if (!has(inflate, 16)) return false;
    inflate->left = use(inflate, 16);
  }
  return enter(inflate, EXTRA);
}

static bool skip(struct balancer_inflate *inflate, enum state next) {
  for (; inflate->left; inflate->left--) {
    if (!has(inflate, 8)) return false;
    use(inflate, 8);
  }
  return enter(inflate, next);
}

static bool skip_text(struct balancer_inflate *inflate, uint32_t flag, enum state next) {
  while (inflate->flags & flag) {
    if (!has(inflate, 8)) return false;
    if (++inflate->checked > MOST_IDLE_BYTES) return bad(inflate);
    if (!use(inflate, 8)) break;
  }
  return enter(inflate, next);
}

static bool head_sum(struct balancer_inflate *inflate) {
  if (inflate->flags & FLAG_SUM) {
    if (!has(inflate, 16)) return false;
    use(inflate, 16);
  }
  return begin_blocks(inflate);
}

static bool fixed(struct balancer_inflate *inflate) {
  uint8_t *lengths = inflate->lengths;
  memset(lengths, 8, 144);
  memset(lengths + 144, 9, 112);
  memset(lengths + 256, 7, 24);
  memset(lengths + 280, 8, 8);
  make(&inflate->literal, lengths, BALANCER_LITERALS);
  memset(lengths, 5, 32);
  make(&inflate->distant, lengths, 32);
  return enter(inflate, SYMBOL);
}

static bool block(struct balancer_inflate *inflate) {
  if (inflate->last) {
    use(inflate, inflate->count % 8);
    inflate->left = inflate->tail;
    return enter(inflate, TAIL);
  }
  if (!has(inflate, 3)) return false;
  uint64_t used = inflate->given - (uint64_t)(inflate->end - inflate->in) - inflate->count / 8;
  if (used > 2 * inflate->made + 2 * MOST_IDLE_BYTES) return bad(inflate);
  inflate->last = use(inflate, 1);
  switch (use(inflate, 2)) {
    case 0:
      use(inflate, inflate->count % 8);
      return enter(inflate, STORED_LENGTH);
    case 1: return fixed(inflate);
    case 2: return enter(inflate, COUNTS);
    default: return bad(inflate);
  }
}

static bool stored_length(struct balancer_inflate *inflate) {
  if (!has(inflate, 32)) return false;
  uint32_t length = use(inflate, 16), complement = use(inflate, 16);
  if (length != (complement ^ 0xFFFF)) return bad(inflate);
  inflate->left = length;
  return enter(inflate, STORED);
}

static bool stored(struct balancer_inflate *inflate) {
  while (inflate->left && inflate->at < BALANCER_WINDOW_BYTES) {
    size_t there = (size_t)(inflate->end - inflate->in), room = BALANCER_WINDOW_BYTES - inflate->at;
    if (inflate->count) {
      inflate->window[inflate->at++] = (uint8_t)use(inflate, 8);
      inflate->made++;
      inflate->left--;
      continue;
    }
    if (!there) return false;
    if (there > room) there = room;
    if (there > inflate->left) there = inflate->left;
    memcpy(inflate->window + inflate->at, inflate->in, there);
    inflate->in += there;
    inflate->at += (uint32_t)there;
    inflate->made += there;
    inflate->left -= (uint32_t)there;
  }
  return inflate->left || enter(inflate, BLOCK);
}

static bool counts(struct balancer_inflate *inflate) {
  if (!has(inflate, 14)) return false;
  inflate->literals = (uint16_t)(use(inflate, 5) + 257);
  inflate->distances = (uint16_t)(use(inflate, 5) + 1);
  inflate->codes = (uint16_t)(use(inflate, 4) + 4);
  inflate->length = 0;
  memset(inflate->lengths, 0, sizeof inflate->lengths);
  if (inflate->literals > 286 || inflate->distances > 30) return bad(inflate);
  return enter(inflate, CODE_LENGTHS);
}

static bool code_lengths(struct balancer_inflate *inflate) {
  static const uint8_t order[19] = {16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15};
  for (; inflate->length < inflate->codes; inflate->length++) {
    if (!has(inflate, 3)) return false;
    inflate->lengths[order[inflate->length]] = (uint8_t)use(inflate, 3);
  }
  if (!make(&inflate->literal, inflate->lengths, 19)) return bad(inflate);
  inflate->length = 0;
  return enter(inflate, LENGTHS);
}

static bool lengths(struct balancer_inflate *inflate) {
  static const struct {
    uint8_t bits, least;
  } repeats[] = {{2, 3}, {3, 3}, {7, 11}};
  uint32_t all = inflate->literals + inflate->distances, used;
  while (inflate->length < all) {
    refill(inflate);
    int symbol = decode(&inflate->literal, inflate->bits, inflate->count, &used);
    if (symbol == SHORT) return false;
    if (symbol == NONE) return bad(inflate);
    if (symbol < 16) {
      use(inflate, used);
      inflate->lengths[inflate->length++] = (uint8_t)symbol;
      continue;
    }
    uint32_t bits = repeats[symbol - 16].bits;
    if (inflate->count < used + bits) return false;
    use(inflate, used);
    uint32_t times = repeats[symbol - 16].least + use(inflate, bits);
    if (times > all - inflate->length || (symbol == 16 && !inflate->length)) return bad(inflate);
    memset(inflate->lengths + inflate->length, symbol == 16 ? inflate->lengths[inflate->length - 1] : 0, times);
    inflate->length = (uint16_t)(inflate->length + times);
  }
  if (!inflate->lengths[END_OF_BLOCK] || !make(&inflate->literal, inflate->lengths, inflate->literals) ||
      !make(&inflate->distant, inflate->lengths + inflate->literals, inflate->distances))
    return bad(inflate);
  return enter(inflate, SYMBOL);
}

static bool symbol(struct balancer_inflate *inflate) {
  static const struct {
    uint16_t base;
    uint8_t bits;
  } far[30] = {{1, 0},    {2, 0},    {3, 0},    {4, 0},    {5, 1},     {7, 1},     {9, 2},     {13, 2},    {17, 3},    {25, 3},
               {33, 4},   {49, 4},   {65, 5},   {97, 5},   {129, 6},   {193, 6},   {257, 7},   {385, 7},   {513, 8},   {769, 8},
               {1025, 9}, {1537, 9}, {2049, 10}, {3073, 10}, {4097, 11}, {6145, 11}, {8193, 12}, {12289, 12}, {16385, 13}, {24577, 13}},
    long_[29] = {{3, 0},  {4, 0},  {5, 0},  {6, 0},  {7, 0},  {8, 0},  {9, 0},  {10, 0},  {11, 1},  {13, 1},
                 {15, 1}, {17, 1}, {19, 2}, {23, 2}, {27, 2}, {31, 2}, {35, 3}, {43, 3},  {51, 3},  {59, 3},
                 {67, 4}, {83, 4}, {99, 4}, {115, 4}, {131, 5}, {163, 5}, {195, 5}, {227, 5}, {258, 0}};
  while (inflate->at < BALANCER_WINDOW_BYTES) {
    uint32_t used, more;
    refill(inflate);
    int found = decode(&inflate->literal, inflate->bits, inflate->count, &used);
    if (found == SHORT) return false;
    if (found < 0) return bad(inflate);
    if (found < END_OF_BLOCK) {
      use(inflate, used);
      inflate->window[inflate->at++] = (uint8_t)found;
      inflate->made++;
      continue;
    }
    if (found == END_OF_BLOCK) {
      use(inflate, used);
      return enter(inflate, BLOCK);
    }
    found -= END_OF_BLOCK + 1;
    if (found >= 29) return bad(inflate);
    uint32_t bits = used + long_[found].bits;
    if (inflate->count < bits) return false;
    uint32_t length = long_[found].base + ((uint32_t)(inflate->bits >> used) & ((1U << long_[found].bits) - 1));
    int distant = decode(&inflate->distant, inflate->bits >> bits, inflate->count - bits, &more);
    if (distant == SHORT) return false;
    if (distant < 0 || distant >= 30) return bad(inflate);
    if (inflate->count < bits + more + far[distant].bits) return false;
    use(inflate, bits);
    use(inflate, more);
    inflate->distance = far[distant].base + use(inflate, far[distant].bits);
    inflate->left = length;
    if (inflate->distance > inflate->made) return bad(inflate);
    return enter(inflate, COPY);
  }
  return true;
}

static bool copy(struct balancer_inflate *inflate) {
  uint32_t room = BALANCER_WINDOW_BYTES - inflate->at, count = inflate->left < room ? inflate->left : room;
  uint32_t from = (inflate->at - inflate->distance) & WINDOW_MASK;
  uint8_t *window = inflate->window;
  if (from + count <= inflate->at) memcpy(window + inflate->at, window + from, count);
  else if (inflate->distance == 1) memset(window + inflate->at, window[from], count);
  else
    for (uint32_t i = 0; i < count; i++) window[inflate->at + i] = window[(from + i) & WINDOW_MASK];
  inflate->at += count;
  inflate->made += count;
  inflate->left -= count;
  return inflate->left || enter(inflate, SYMBOL);
}

/* One step; false: it needs more bytes. */
static bool step(struct balancer_inflate *inflate) {
  switch ((enum state)inflate->state) {
    case MAGIC: return magic(inflate);
    case GZIP_HEAD: return gzip_head(inflate);
    case EXTRA_LENGTH: return extra_length(inflate);
    case EXTRA: return skip(inflate, NAME);
    case NAME: return skip_text(inflate, FLAG_NAME, COMMENT);
    case COMMENT: return skip_text(inflate, FLAG_COMMENT, HEAD_SUM);
    case HEAD_SUM: return head_sum(inflate);
    case BLOCK: return block(inflate);
    case STORED_LENGTH: return stored_length(inflate);
    case STORED: return stored(inflate);
    case COUNTS: return counts(inflate);
    case CODE_LENGTHS: return code_lengths(inflate);
    case LENGTHS: return lengths(inflate);
    case SYMBOL: return symbol(inflate);
    case COPY: return copy(inflate);
    case TAIL: return skip(inflate, OVER);
    case OVER: return inflate->count || inflate->in < inflate->end ? bad(inflate) : false;
    case BAD: return false;
  }
  return false;
}

enum balancer_inflated balancer_inflate_take(struct balancer_inflate *inflate, const uint8_t **out, size_t *length) {
  if (inflate->at == BALANCER_WINDOW_BYTES) inflate->at = 0;
  uint32_t from = inflate->at;
  while (inflate->at < BALANCER_WINDOW_BYTES && step(inflate));
  *out = inflate->window + from;
  *length = inflate->at - from;
  if (inflate->state == BAD) return BALANCER_NOT_DEFLATED;
  return inflate->state == OVER ? BALANCER_INFLATED : BALANCER_INFLATES;
}
