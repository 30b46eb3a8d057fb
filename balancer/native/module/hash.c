/* Hashes of policies/hashing.py. */
#include "text.h"

#include <string.h>

enum { BLOCK = 128, DIGEST = 8, ROUNDS = 12 };

uint64_t balancer_mix(uint64_t value) {
  value += UINT64_C(0x9E3779B97F4A7C15);
  value = (value ^ value >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
  value = (value ^ value >> 27) * UINT64_C(0x94D049BB133111EB);
  return value ^ value >> 31;
}

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

static void quarter(uint64_t v[16], int a, int b, int c, int d, uint64_t x, uint64_t y) {
  v[a] = v[a] + v[b] + x;
  v[d] = rotated(v[d] ^ v[a], 32);
  v[c] = v[c] + v[d];
  v[b] = rotated(v[b] ^ v[c], 24);
  v[a] = v[a] + v[b] + y;
  v[d] = rotated(v[d] ^ v[a], 16);
  v[c] = v[c] + v[d];
  v[b] = rotated(v[b] ^ v[c], 63);
}

static void compress(uint64_t state[8], const uint8_t block[BLOCK], uint64_t so_far, bool last) {
  uint64_t v[16], m[16];
  memcpy(v, state, sizeof(uint64_t) * 8);
  memcpy(v + 8, INITIAL, sizeof INITIAL);
  v[12] ^= so_far;
  if (last) v[14] = ~v[14];
  for (int i = 0; i < 16; i++) {
    m[i] = 0;
    for (int byte = 7; byte >= 0; byte--) m[i] = m[i] << 8 | block[i * 8 + byte];
  }
  for (int round = 0; round < ROUNDS; round++) {
    const uint8_t *s = SIGMA[round % 10];
    for (int i = 0; i < 4; i++) quarter(v, i, 4 + i, 8 + i, 12 + i, m[s[2 * i]], m[s[2 * i + 1]]);
    for (int i = 0; i < 4; i++)
      quarter(v, i, 4 + (i + 1) % 4, 8 + (i + 2) % 4, 12 + (i + 3) % 4, m[s[8 + 2 * i]], m[s[9 + 2 * i]]);
  }
  for (int i = 0; i < 8; i++) state[i] ^= v[i] ^ v[i + 8];
}

uint64_t balancer_key_of(const struct balancer_text *text) {
  uint64_t state[8], so_far = 0, key = 0;
  size_t left = text->bytes < sizeof text->kept ? text->bytes : sizeof text->kept;
  const char *at = text->kept;
  memcpy(state, INITIAL, sizeof state);
  state[0] ^= UINT64_C(0x01010000) ^ DIGEST;
  for (bool last = false; !last;) {
    uint8_t block[BLOCK] = {0};
    size_t taken = left < BLOCK ? left : BLOCK;
    memcpy(block, at, taken);
    at += taken;
    left -= taken;
    so_far += taken;
    last = !left;
    compress(state, block, so_far, last);
  }
  /* The digest's bytes, of a little-endian word, read as a big-endian number. */
  for (int i = 0; i < DIGEST; i++) key = key << 8 | (state[0] >> 8 * i & 0xFF);
  return key;
}
