/* Hashes of policies/hashing.py. */
#include "text.h"

#include <string.h>

enum { BLOCK = BALANCER_HASH_BLOCK_BYTES, DIGEST = 8 };

uint64_t balancer_mix(uint64_t value) {
  value += UINT64_C(0x9E3779B97F4A7C15);
  value = (value ^ value >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
  value = (value ^ value >> 27) * UINT64_C(0x94D049BB133111EB);
  return value ^ value >> 31;
}

double balancer_draw(uint64_t value) { return (double)(balancer_mix(value) >> 11) * 0x1p-53; }

/* BLAKE2b: RFC 7693. */
static const uint64_t INITIAL[8] = {
  UINT64_C(0x6a09e667f3bcc908), UINT64_C(0xbb67ae8584caa73b), UINT64_C(0x3c6ef372fe94f82b), UINT64_C(0xa54ff53a5f1d36f1),
  UINT64_C(0x510e527fade682d1), UINT64_C(0x9b05688c2b3e6c1f), UINT64_C(0x1f83d9abfb41bd6b), UINT64_C(0x5be0cd19137e2179),
};

static const uint8_t SIGMA[10][16] = {
  {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}, {14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3},
  {11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4}, {7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8},
  {9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13}, {2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9},
  {12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11}, {13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10},
  {6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5}, {10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0},
};

static uint64_t rotated(uint64_t word, unsigned by) { return word >> by | word << (64 - by); }

static uint64_t word_at(const uint8_t *at) {
  return (uint64_t)at[0] | (uint64_t)at[1] << 8 | (uint64_t)at[2] << 16 | (uint64_t)at[3] << 24 |
         (uint64_t)at[4] << 32 | (uint64_t)at[5] << 40 | (uint64_t)at[6] << 48 | (uint64_t)at[7] << 56;
}

/* Of four words each: with constant places, a compiler keeps them in registers. */
#define QUARTER(a, b, c, d, x, y) \
  do { \
    v[a] += v[b] + (x); \
    v[d] = rotated(v[d] ^ v[a], 32); \
    v[c] += v[d]; \
    v[b] = rotated(v[b] ^ v[c], 24); \
    v[a] += v[b] + (y); \
    v[d] = rotated(v[d] ^ v[a], 16); \
    v[c] += v[d]; \
    v[b] = rotated(v[b] ^ v[c], 63); \
  } while (0)
#define M(round, i) m[SIGMA[(round) % 10][i]]
#define ROUND(round) \
  do { \
    QUARTER(0, 4, 8, 12, M(round, 0), M(round, 1)); \
    QUARTER(1, 5, 9, 13, M(round, 2), M(round, 3)); \
    QUARTER(2, 6, 10, 14, M(round, 4), M(round, 5)); \
    QUARTER(3, 7, 11, 15, M(round, 6), M(round, 7)); \
    QUARTER(0, 5, 10, 15, M(round, 8), M(round, 9)); \
    QUARTER(1, 6, 11, 12, M(round, 10), M(round, 11)); \
    QUARTER(2, 7, 8, 13, M(round, 12), M(round, 13)); \
    QUARTER(3, 4, 9, 14, M(round, 14), M(round, 15)); \
  } while (0)

static void compress(uint64_t state[8], const uint8_t block[BLOCK], uint64_t so_far, bool last) {
  uint64_t v[16], m[16];
  memcpy(v, state, sizeof(uint64_t) * 8);
  memcpy(v + 8, INITIAL, sizeof INITIAL);
  v[12] ^= so_far;
  if (last) v[14] = ~v[14];
  for (int i = 0; i < 16; i++) m[i] = word_at(block + (size_t)i * 8);
  ROUND(0);
  ROUND(1);
  ROUND(2);
  ROUND(3);
  ROUND(4);
  ROUND(5);
  ROUND(6);
  ROUND(7);
  ROUND(8);
  ROUND(9);
  ROUND(10);
  ROUND(11);
  for (int i = 0; i < 8; i++) state[i] ^= v[i] ^ v[i + 8];
}

void balancer_hash_start(struct balancer_hash *hash) {
  memcpy(hash->state, INITIAL, sizeof hash->state);
  hash->state[0] ^= UINT64_C(0x01010000) ^ DIGEST;
  hash->so_far = 0;
  hash->rest_bytes = 0;
}

/* What may be the last block stays in `rest` until it is known. */
void balancer_hash_add(struct balancer_hash *hash, const void *data, size_t length) {
  const uint8_t *at = data;
  while (length) {
    if (hash->rest_bytes == BLOCK) {
      compress(hash->state, hash->rest, hash->so_far += BLOCK, false);
      hash->rest_bytes = 0;
    }
    for (; !hash->rest_bytes && length > BLOCK; at += BLOCK, length -= BLOCK)
      compress(hash->state, at, hash->so_far += BLOCK, false);
    size_t room = BLOCK - hash->rest_bytes, taken = length < room ? length : room;
    memcpy(hash->rest + hash->rest_bytes, at, taken);
    hash->rest_bytes += (uint32_t)taken;
    at += taken;
    length -= taken;
  }
}

uint64_t balancer_hash_of(const struct balancer_hash *hash) {
  uint64_t state[8];
  uint8_t block[BLOCK] = {0};
  memcpy(state, hash->state, sizeof state);
  memcpy(block, hash->rest, hash->rest_bytes);
  compress(state, block, hash->so_far + hash->rest_bytes, true);
  return state[0];
}

uint64_t balancer_key_of(const struct balancer_text *text) {
  struct balancer_hash hash;
  struct text kept = kept_of(text);
  uint64_t key = 0;
  balancer_hash_start(&hash);
  if (kept.length) balancer_hash_add(&hash, kept.ptr, kept.length);
  uint64_t digest = balancer_hash_of(&hash);
  /* The digest's bytes, of a little-endian word, read as a big-endian number. */
  for (int i = 0; i < DIGEST; i++) key = key << 8 | (digest >> 8 * i & 0xFF);
  return key;
}
