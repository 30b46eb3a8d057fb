#define _GNU_SOURCE
#include "directory.h"

#include "kernel.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static uint64_t hash_of(struct text model, struct text version) {
  uint64_t hash = UINT64_C(14695981039346656037); /* FNV-1a */
  for (size_t i = 0; i < model.length; i++) hash = (hash ^ (uint8_t)model.ptr[i]) * UINT64_C(1099511628211);
  hash = (hash ^ 0xff) * UINT64_C(1099511628211);
  for (size_t i = 0; i < version.length; i++) hash = (hash ^ (uint8_t)version.ptr[i]) * UINT64_C(1099511628211);
  return hash;
}

static bool within(const struct directory_head *head, struct piece piece) {
  return piece.at <= head->strings && piece.length <= head->strings - piece.at;
}

static bool is_entry(const struct directory_head *head, int64_t entry) {
  return entry >= 0 && (uint64_t)entry < head->entries;
}

/* It is written into requests. */
static bool is_version(const struct directory *directory, struct piece piece) {
  if (piece.length >= VERSION_BYTES || !within(&directory->head, piece)) return false;
  for (uint32_t i = 0; i < piece.length; i++)
    if (directory->strings[piece.at + i] < '0' || directory->strings[piece.at + i] > '9') return false;
  return true;
}

/* Everything that is followed later, once. */
static const char *objection(const struct directory *directory) {
  const struct directory_head *head = &directory->head;
  if (!is_entry(head, head->no_model) || (head->any_model != NO_ENTRY && !is_entry(head, head->any_model)))
    return "an entry that is not there";
  bool pieces = true;
  for (int i = 0; i < DECIDERS; i++)
    pieces = pieces && within(head, head->deciders[i].name) && within(head, head->deciders[i].options) &&
             head->deciders[i].options.length < 64;
  for (int i = 0; i < NAMED_HEADERS; i++) pieces = pieces && within(head, head->headers[i]);
  for (uint64_t w = 0; w < head->workers; w++)
    for (int i = 0; i < 2; i++)
      if (!memchr(directory->workers[w].of[i], 0, ENDPOINT_BYTES)) return "an endpoint that does not end";
  for (uint64_t i = 0; i < head->entries; i++) {
    const struct entry *entry = &directory->entries[i];
    pieces = pieces && within(head, entry->model) && within(head, entry->version) && within(head, entry->quoted);
    if (entry->servable >= head->masks || entry->members >= head->masks) return "a mask that is not there";
    if (!is_version(directory, entry->old) || !is_version(directory, entry->new)) return "a version that is none";
    if (entry->column < 0 || entry->column > UINT32_MAX) return "a column that cannot be";
    if (i && directory->entries[i - 1].hash > entry->hash) return "entries out of order";
  }
  for (uint64_t i = 0; i < head->masks * head->workers; i++)
    if (directory->masks[i] > 1) return "a mask of neither ones nor zeros";
  return pieces ? NULL : "a text that is not within";
}

static const char *lay_out(struct directory *directory, size_t bytes) {
  struct directory_head *head = &directory->head;
  if (bytes < sizeof *head) return "shorter than its head";
  memcpy(head, directory->memory, sizeof *head);
  if (head->magic != DIRECTORY_MAGIC) return "none";
  if (memcmp(head->stamp, BALANCER_STAMP, sizeof head->stamp)) return "of other sources";
  uint64_t most = DIRECTORY_MOST_BYTES;
  if (head->workers > most || head->entries > most || head->masks > most || head->strings > most)
    return "larger than it may be";
  if (head->workers && head->masks > most / head->workers) return "larger than it may be";
  uint64_t at = sizeof *head, workers = head->workers * sizeof(struct endpoints);
  uint64_t entries = head->entries * sizeof(struct entry), masks = head->masks * head->workers;
  if (at + workers + entries + masks + head->strings != bytes || head->bytes != bytes) return "not as long as it says";
  const char *start = directory->memory;
  directory->workers = (const struct endpoints *)(start + at);
  directory->entries = (const struct entry *)(start + at + workers);
  directory->masks = (const uint8_t *)(start + at + workers + entries);
  directory->strings = start + at + workers + entries + masks;
  return objection(directory);
}

/* FNV-1a over words, as what is written in blocks is of whole words; then the rest. */
uint64_t balancer_state_digest(const void *content, uint64_t bytes) {
  uint64_t hash = UINT64_C(14695981039346656037), word;
  const char *at = content;
  for (; bytes >= sizeof word; at += sizeof word, bytes -= sizeof word) {
    memcpy(&word, at, sizeof word);
    hash = (hash ^ word) * UINT64_C(1099511628211);
    hash ^= hash >> 32;
  }
  for (; bytes; at++, bytes--) hash = (hash ^ (uint8_t)*at) * UINT64_C(1099511628211);
  return hash;
}

static void *read_whole(int file, size_t bytes) {
  char *memory = malloc(bytes ? bytes : 1);
  size_t there = 0;
  while (memory && there < bytes) {
    ssize_t count = read(file, memory + there, bytes - there);
    if (count <= 0) {
      free(memory);
      return NULL;
    }
    there += (size_t)count;
  }
  return memory;
}

void *content_of(int folder, const char *name, size_t most, size_t *bytes) {
  struct stat found;
  void *content = NULL;
  /* What is no file may keep whoever opens it. */
  int file = openat(folder, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (file < 0) return NULL;
  if (!fstat(file, &found) && S_ISREG(found.st_mode) && found.st_size >= 0 && (size_t)found.st_size <= most)
    content = read_whole(file, *bytes = (size_t)found.st_size);
  close(file);
  return content;
}

struct directory *directory_load(int folder, uint64_t serial, const char **why) {
  char name[40];
  size_t bytes = 0;
  snprintf(name, sizeof name, "directory-%" PRIu64, serial);
  struct directory *directory = calloc(1, sizeof *directory);
  if (directory) directory->memory = content_of(folder, name, DIRECTORY_MOST_BYTES, &bytes);
  if (!directory || !directory->memory) {
    *why = "not there, or cannot be read";
    directory_free(directory);
    return NULL;
  }
  *why = lay_out(directory, bytes);
  if (!*why && directory->head.serial != serial) *why = "another one than its name says";
  if (!*why) return directory;
  directory_free(directory);
  return NULL;
}

void directory_free(struct directory *directory) {
  if (!directory) return;
  free(directory->memory);
  free(directory);
}

const struct entry *directory_find(const struct directory *directory, struct text model, struct text version) {
  uint64_t hash = hash_of(model, version), low = 0, high = directory->head.entries;
  while (low < high) {
    uint64_t middle = low + (high - low) / 2;
    if (directory->entries[middle].hash < hash)
      low = middle + 1;
    else
      high = middle;
  }
  for (; low < directory->head.entries && directory->entries[low].hash == hash; low++) {
    const struct entry *entry = &directory->entries[low];
    if (same(directory_text(directory, entry->model), model) && same(directory_text(directory, entry->version), version))
      return entry;
  }
  return NULL;
}

int64_t directory_row(const struct directory *directory, struct text endpoint, enum balancer_port port, int64_t guess) {
  uint64_t workers = directory->head.workers;
  if (!endpoint.length) return -1;
  for (uint64_t i = 0; i <= workers; i++) {
    int64_t row = i ? (int64_t)i - 1 : guess;
    if (row < 0 || (uint64_t)row >= workers) continue;
    const char *there = directory->workers[row].of[port];
    if (same((struct text){there, strlen(there)}, endpoint)) return row;
  }
  return -1;
}
