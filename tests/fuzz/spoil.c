/* Decides and ends requests over spoiled copies of a balancer's folder: spoil KERNEL.so FOLDER COPY COUNT SEED.

   Each input is FOLDER with one file cut short or changed before it is looked at, or changed while it is in use. The same count, seed and folder
   spoil the same places. An input that takes ten seconds ends the program, as does what a sanitizer sees. Around what is
   mapped lies memory that ends whoever touches it: no sanitizer sees into the kernel. Says how many inputs it tried, how
   many were taken for a state, and how many requests were decided by one. */
#define _GNU_SOURCE
#include "decide.h"

#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* Numbers by chance, from a seed (splitmix64: Steele, Lea, Flood 2014, Fast splittable pseudorandom number generators). */
static uint64_t state;

static uint64_t draw(void) {
  uint64_t value = state += UINT64_C(0x9E3779B97F4A7C15);
  value = (value ^ value >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
  value = (value ^ value >> 27) * UINT64_C(0x94D049BB133111EB);
  return value ^ value >> 31;
}

static size_t below(size_t most) { return most ? (size_t)(draw() % most) : 0; }

#define GUARD ((size_t)64 << 20)
enum { MOST_FILES = 16, MOST_NAME = 64, ASKS = 6, MOST_SECONDS = 10, MOST_KEPT = 32, USED = 128, VALUES = 32 };

static struct {
  char name[MOST_NAME];
  uint8_t *content, *copy; /* as it was; as it lies in the folder's copy */
  size_t bytes;
} files[MOST_FILES];
static size_t count;
static const char *folder;

void *__real_mmap(void *at, size_t bytes, int rights, int flags, int file, off_t offset);
int __real_munmap(void *at, size_t bytes);

static size_t whole_pages(size_t bytes) { return (bytes + 4095) / 4096 * 4096; }

void *__wrap_mmap(void *at, size_t bytes, int rights, int flags, int file, off_t offset) {
  size_t all = whole_pages(bytes) + 2 * GUARD;
  uint8_t *start = __real_mmap(NULL, all, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at || start == MAP_FAILED) exit(2);
  return __real_mmap(start + GUARD, bytes, rights, flags | MAP_FIXED, file, offset);
}

int __wrap_munmap(void *at, size_t bytes) {
  return __real_munmap((uint8_t *)at - GUARD, whole_pages(bytes) + 2 * GUARD);
}

/* What the module reads whole ends where nobody may touch; all else is as it is. */
static struct {
  void *at, *mapped;
  size_t bytes;
} kept[MOST_KEPT];

void *__real_malloc(size_t bytes);
void __real_free(void *at);

void *__wrap_malloc(size_t bytes) {
  for (size_t i = 0; i < MOST_KEPT; i++) {
    if (kept[i].at) continue;
    size_t pages = whole_pages(bytes + 15);
    uint8_t *mapped = __wrap_mmap(NULL, pages, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    kept[i].mapped = mapped;
    kept[i].bytes = pages;
    return kept[i].at = mapped + pages - (bytes + 15) / 16 * 16;
  }
  return __real_malloc(bytes);
}

void __wrap_free(void *at) {
  for (size_t i = 0; at && i < MOST_KEPT; i++) {
    if (kept[i].at != at) continue;
    __wrap_munmap(kept[i].mapped, kept[i].bytes);
    kept[i].at = NULL;
    return;
  }
  __real_free(at);
}

static void path_of(const char *in, const char *name, char *path, size_t most) {
  if ((size_t)snprintf(path, most, "%s/%s", in, name) >= most) exit(2);
}

static void load(const char *from) {
  DIR *listed = opendir(from);
  if (!listed) exit(2);
  for (struct dirent *one; (one = readdir(listed)) && count < MOST_FILES;) {
    const char *name = one->d_name;
    if (strcmp(name, "control") && strcmp(name, "fleet_state") && strncmp(name, "directory-", 10) && strncmp(name, "options-", 8))
      continue;
    char path[600];
    path_of(from, name, path, sizeof path);
    FILE *file = fopen(path, "rb");
    struct stat about;
    if (!file || stat(path, &about) || strlen(name) >= MOST_NAME) exit(2);
    files[count].bytes = (size_t)about.st_size;
    files[count].content = malloc(files[count].bytes);
    if (!files[count].content || fread(files[count].content, 1, files[count].bytes, file) != files[count].bytes) exit(2);
    fclose(file);
    strcpy(files[count++].name, name);
  }
  closedir(listed);
}

/* A new file of so many bytes takes the place of the one there. */
static void place(size_t which, size_t bytes) {
  char path[600];
  path_of(folder, files[which].name, path, sizeof path);
  if (files[which].copy) munmap(files[which].copy, files[which].bytes);
  files[which].copy = NULL;
  unlink(path);
  int file = open(path, O_RDWR | O_CREAT | O_EXCL, 0600);
  if (file < 0 || ftruncate(file, (off_t)bytes)) exit(2);
  if (bytes == files[which].bytes) {
    files[which].copy = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (files[which].copy == MAP_FAILED) exit(2);
  } else if (write(file, files[which].content, bytes) != (ssize_t)bytes) {
    exit(2);
  }
  close(file);
}

static struct control *restore(void) {
  struct control *control = NULL;
  for (size_t i = 0; i < count; i++) {
    if (!files[i].copy) place(i, files[i].bytes);
    memcpy(files[i].copy, files[i].content, files[i].bytes);
    if (!strcmp(files[i].name, "control")) control = (struct control *)files[i].copy;
  }
  if (!control) exit(2);
  atomic_store(&control->heartbeat_ns, now_ns());
  return control;
}

static uint64_t telling(size_t bytes) {
  const double numbers[] = {NAN, INFINITY, -INFINITY, -1.0, 1e300, 1e9, -1e9, 1e7, 0.5};
  const uint64_t words[] = {0, 1, 2, UINT64_MAX, INT64_MAX, (uint64_t)1 << 63, UINT32_MAX, bytes, bytes - 1, 21, 22, 64, 65};
  uint64_t found;
  switch (below(4)) {
    case 0: memcpy(&found, &numbers[below(sizeof numbers / sizeof *numbers)], sizeof found); return found;
    case 1: return (uint64_t)1 << below(64);
    case 2: return draw();
    default: return words[below(sizeof words / sizeof *words)];
  }
}

/* Where what is followed lies beside the start: slots in use, who decides, and the first numbers of a policy. */
static size_t aimed_at(size_t which) {
  struct balancer_array values;
  if (files[which].bytes == sizeof(struct control))
    return below(2) ? offsetof(struct control, slots) + below(USED)
                    : offsetof(struct control, selector) + below(sizeof(struct selector));
  memcpy(&values, files[which].content + sizeof(struct balancer_block), sizeof values);
  return values.offset + below(VALUES);
}

static bool is_aimed_at(size_t which) {
  return files[which].bytes == sizeof(struct control) || !strncmp(files[which].name, "options-", 8);
}

static void spoil(size_t which) {
  static const size_t reach[] = {64, 512, 8192, SIZE_MAX};
  uint8_t *content = files[which].copy;
  size_t bytes = files[which].bytes;
  for (size_t changes = 1 + below(8); changes; changes--) {
    size_t most = reach[below(4)], at = below(most < bytes ? most : bytes);
    if (is_aimed_at(which) && below(2)) at = aimed_at(which);
    uint64_t word = telling(bytes);
    switch (below(6)) {
      case 0: content[at] ^= (uint8_t)(1U << below(8)); break;
      case 1: content[at] = (uint8_t)draw(); break;
      default: /* nearly all that is followed is a word */
        at -= at % 8;
        memcpy(content + at, &word, bytes - at < 8 ? bytes - at : 8);
        break;
      case 2: {
        size_t from = below(bytes), length = below(256);
        if (length > bytes - from) length = bytes - from;
        if (length > bytes - at) length = bytes - at;
        memmove(content + at, content + from, length);
        break;
      }
    }
  }
}

/* `between`: the file that is spoiled before each end; none where there is no such file. */
static uint64_t decide_some(struct source *source, size_t between) {
  static const char *const models[] = {"a", "b", "c", "nobody", ""};
  uint64_t taken = 0;
  for (unsigned nth = 0; nth < ASKS; nth++) {
    struct attached *attached = source_take(source);
    if (!attached) return taken;
    const char *model = models[below(5)];
    struct features features = {.kind = (enum balancer_kind)below(3), .keyed = below(2), .rows = (double)below(9)};
    struct decision decision;
    struct ending ending = {.http_status = 200, .grpc_status = (int)below(16), .latency_s = 0.001};
    static struct balancer_prompt prompt;
    features.port = (enum balancer_port)below(3);
    features.grpc = features.port == BALANCER_GRPC_PORT;
    features.sequence = features.keyed && below(2);
    if (below(2)) {
      static const uint8_t text[4096];
      features.body_bytes = below(sizeof text) + 1;
      balancer_prompt_start(&prompt);
      balancer_prompt_add(&prompt, text, features.body_bytes);
      balancer_prompt_end(&prompt, TEXT("a"), TEXT(""));
      features.prompt = &prompt;
    }
    features.key = draw();
    features.deadline_s = below(2) ? INFINITY : 0.01;
    features.model = (struct text){model, strlen(model)};
    features.version = below(3) ? TEXT("") : TEXT("1");
    decide(source, attached, &features, &decision);
    taken += decision.answer == TAKEN;
    if (decision.length > sizeof decision.words) abort();
    const char *comma = memchr(decision.words, ',', decision.length);
    size_t length = comma ? (size_t)(comma - decision.words) : decision.length;
    if (decision.answer == TAKEN && length < sizeof ending.endpoint) memcpy(ending.endpoint, decision.words, length);
    if (between < count) spoil(between);
    if (decision.answer == TAKEN && below(2)) place_begins(source, attached, &decision);
    ending.answered.output_tokens = (uint32_t)below(99);
    judge(&ending, TEXT("via_upstream"), true);
    finish(source, attached, &features, decision.answer == TAKEN ? &decision : NULL, &ending);
    source_give(source, attached);
  }
  return taken;
}

int main(int given, char **arguments) {
  const char *why = NULL;
  if (given != 6) return 2;
  load(arguments[2]);
  folder = arguments[3];
  uint64_t tries = strtoull(arguments[4], NULL, 10), seen = 0, taken = 0;
  state = strtoull(arguments[5], NULL, 10);
  if (!dlopen(arguments[1], RTLD_NOW | RTLD_LOCAL)) return 2;
  for (uint64_t i = 0; i < tries; i++) {
    alarm(MOST_SECONDS);
    restore();
    struct source *source = source_new(arguments[1], folder, &why);
    if (!source) return 2;
    size_t which = below(count), how = below(4);
    if (how == 0) place(which, below(files[which].bytes));
    else if (how == 1) spoil(which);
    taken += decide_some(source, count);
    if (how == 2) spoil(which);
    if (how > 1) taken += decide_some(source, how == 3 ? which : count);
    seen += source->current != NULL;
    source_leave(source);
    dlclose(source->kernel.library);
    free(source);
  }
  printf("%" PRIu64 " inputs, %" PRIu64 " taken for a state, %" PRIu64 " requests decided\n", tries, seen, taken);
  return 0;
}
