/* Calls a fuzzer's entry with mutations of a corpus, where there is no libFuzzer: driver COUNT SEED FILE...

   The same count, seed and files give the same inputs. Says how many it tried; the last one that a sanitizer or the entry
   ended is in the file crash-SEED in the current folder. */
#include "draw.h"

#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_BYTES = 1 << 17, MOST_FILES = 256 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct {
  uint8_t *at;
  size_t length;
} corpus[MOST_FILES];
static size_t files;
static uint8_t input[MOST_BYTES];
static size_t length;
static uint64_t seed;

static void keep_input(int signal_number) {
  char name[64];
  snprintf(name, sizeof name, "crash-%llu", (unsigned long long)seed);
  FILE *file = fopen(name, "wb");
  if (file) {
    fwrite(input, 1, length, file);
    fclose(file);
  }
  signal(signal_number, SIG_DFL);
  raise(signal_number);
}

static void insert(size_t at, const uint8_t *data, size_t count) {
  if (count > MOST_BYTES - length) count = MOST_BYTES - length;
  memmove(input + at + count, input + at, length - at);
  memcpy(input + at, data, count);
  length += count;
}

static void erase(size_t at, size_t count) {
  if (count > length - at) count = length - at;
  memmove(input + at, input + at + count, length - at - count);
  length -= count;
}

static void mutate(void) {
  static const uint8_t telling[] = {0, 1, 2, 5, 7, 8, 9, 10, 0x12, 0x1a, 0x22, 0x2a, 0x32, 0x3a, 0x7f, 0x80, 0xc3, 0xed,
                                    0xf4, 0xff, '"', '\\', '{', '}', '[', ']', ':', ',', '/', '%', '-', '0', '9', 'u'};
  static const char *const words[] = {"\"id\":", "\"parameters\":{", "\"inputs\":[{\"shape\":[", "sequence_id", "priority",
                                      "timeout", "\\ud83d", "\\u0000", "%2f", "%c3%a9", "99999999999999999999",
                                      "\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", "\x80\x80\x80\x80\x01"};
  size_t at = below(length + 1), other = below(files), from;
  uint8_t copy[64];
  switch (below(8)) {
    case 0:
      if (at < length) input[at] ^= (uint8_t)(1U << below(8));
      break;
    case 1:
      if (at < length) input[at] = telling[below(sizeof telling)];
      break;
    case 2:
      if (at < length) input[at] = (uint8_t)draw();
      break;
    case 3: insert(at, &telling[below(sizeof telling)], 1); break;
    case 4: erase(at, 1 + below(below(4) ? 8 : length + 1)); break;
    case 5:
      from = below(length + 1);
      memcpy(copy, input + from, length - from < sizeof copy ? length - from : sizeof copy);
      insert(at, copy, below((length - from < sizeof copy ? length - from : sizeof copy) + 1));
      break;
    case 6: {
      const char *word = words[below(sizeof words / sizeof *words)];
      insert(at, (const uint8_t *)word, strlen(word));
      break;
    }
    case 7:
      from = below(corpus[other].length);
      insert(at, corpus[other].at + from, below(corpus[other].length - from + 1));
      break;
  }
}

static void load(const char *path) {
  FILE *file = fopen(path, "rb");
  if (!file) {
    fprintf(stderr, "%s: cannot be opened\n", path);
    exit(2);
  }
  length = fread(input, 1, sizeof input, file);
  fclose(file);
  corpus[files].at = malloc(length ? length : 1);
  if (!corpus[files].at) exit(2);
  memcpy(corpus[files].at, input, length);
  corpus[files++].length = length;
}

int main(int count, char **arguments) {
  if (count < 4 || count - 3 > MOST_FILES) {
    fprintf(stderr, "%s: takes a count, a seed, and files\n", arguments[0]);
    return 2;
  }
  unsigned long long tries = strtoull(arguments[1], NULL, 10);
  seed = state = strtoull(arguments[2], NULL, 10);
  for (int i = 3; i < count; i++) load(arguments[i]);
  signal(SIGABRT, keep_input);
  for (unsigned long long i = 0; i < tries; i++) {
    size_t chosen = below(files);
    length = corpus[chosen].length;
    memcpy(input, corpus[chosen].at, length);
    for (size_t changes = i < files ? 0 : 1 + below(8); changes; changes--) mutate();
    LLVMFuzzerTestOneInput(input, length);
  }
  printf("%llu inputs\n", tries);
  return 0;
}
