/* Numbers by chance, from a seed (splitmix64: Steele, Lea, Flood 2014, Fast splittable pseudorandom number generators). */
#include <stddef.h>
#include <stdint.h>

static uint64_t state;

static uint64_t draw(void) {
  uint64_t value = state += UINT64_C(0x9E3779B97F4A7C15);
  value = (value ^ value >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
  value = (value ^ value >> 27) * UINT64_C(0x94D049BB133111EB);
  return value ^ value >> 31;
}

static size_t below(size_t most) { return most ? (size_t)(draw() % most) : 0; }
