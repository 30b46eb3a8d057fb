#define _GNU_SOURCE
#include "journal.h"

#include "decide.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* What the columns of a view are made of. */
static const struct {
  int array;
  bool of_model;
} SEEN[JOURNAL_SEEN] = {JOURNAL_ARRAYS};

static inline uint64_t filled_up(uint64_t bytes) { return (bytes + 7) & ~UINT64_C(7); }

void journal_close(struct writer *writer) {
  if (writer->journal) munmap(writer->journal, sizeof *writer->journal);
  writer->journal = NULL;
  writer->open = NULL;
}

static bool is_journal(const struct journal *journal) {
  return journal->magic == JOURNAL_MAGIC && journal->bytes == sizeof *journal &&
         !memcmp(journal->stamp, BALANCER_STAMP, sizeof journal->stamp) &&
         !memcmp(journal->shared, SHARED_DIGEST, sizeof journal->shared);
}

bool journal_open(struct writer *writer, int folder) {
  struct stat about;
  int file = openat(folder, "journal", O_RDWR | O_CLOEXEC | O_NOFOLLOW);
  if (file < 0 || fstat(file, &about) || !S_ISREG(about.st_mode) || about.st_size != sizeof *writer->journal) {
    if (file >= 0) close(file);
    journal_close(writer);
    return false;
  }
  if (!writer->journal || writer->inode != about.st_ino) {
    journal_close(writer);
    void *memory = mmap(NULL, sizeof *writer->journal, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (memory != MAP_FAILED) writer->journal = memory;
    writer->inode = about.st_ino;
  }
  close(file);
  if (writer->journal && is_journal(writer->journal)) {
    writer->share = writer->journal->share;
    return true;
  }
  journal_close(writer);
  return false;
}

bool journal_bind(struct attached *attached) {
  for (int i = 0; i <= JOURNAL_SEEN; i++) {
    bool of_model = i < JOURNAL_SEEN && SEEN[i].of_model;
    int which = i < JOURNAL_SEEN ? (int)SEEN[i].array : BALANCER_DECISION_SHARES;
    const double *array = words_at(attached, which, attached->workers * (of_model ? attached->models : 1));
    if (!array) return false;
    if (i < JOURNAL_SEEN) attached->writer.seen[i] = array;
    else attached->writer.answer = array;
  }
  return true;
}

void journal_start(struct writer *writer) {
  writer->open = NULL;
  if (writer->journal) writer->at = filled_up(atomic_load_explicit(&writer->journal->written, memory_order_relaxed));
}

void journal_commit(struct writer *writer) {
  if (writer->journal) atomic_store_explicit(&writer->journal->written, writer->at, memory_order_release);
}

static bool wants(const struct writer *writer, uint64_t number) {
  return writer->journal && balancer_draw(number) < writer->share;
}

/* Room for a record, at `writer->at` then; null: there is none. */
static void *place_for(struct writer *writer, uint64_t bytes) {
  struct journal *journal = writer->journal;
  uint64_t read = atomic_load_explicit(&journal->read, memory_order_acquire), at = writer->at % JOURNAL_RING_BYTES;
  uint64_t left = JOURNAL_RING_BYTES - at, skipped = bytes > left ? left : 0;
  if (bytes > JOURNAL_RING_BYTES / 2 || writer->at + skipped + bytes - read > JOURNAL_RING_BYTES)
    return NULL;
  if (skipped) {
    struct record skip = {.bytes = (uint32_t)skipped, .kind = RECORD_SKIP};
    memcpy(journal->ring + at, &skip, offsetof(struct record, number));
    writer->at += skipped;
    at = 0;
  }
  return journal->ring + at;
}

static void count_dropped(struct writer *writer) {
  atomic_fetch_add_explicit(&writer->journal->dropped, 1, memory_order_relaxed);
}

/* The record of a request, with `more` bytes after its texts, which `after` is set to. */
static struct request_record *place_request(struct attached *attached, const struct features *features,
                                          const struct decision *decision, uint64_t more, char **after) {
  const struct balancer_prompt *prompt = features->prompt;
  uint32_t beginnings = prompt ? prompt->count : 0;
  uint64_t texts = filled_up(features->model.length + features->version.length + features->tenant.length);
  uint64_t of_prompt = beginnings * (sizeof(uint64_t) + sizeof(double));
  uint64_t bytes = sizeof(struct request_record) + texts + of_prompt + more;
  struct request_record *request = place_for(&attached->writer, bytes);
  if (!request) return NULL;
  *request = (struct request_record){
    .record = {.bytes = (uint32_t)bytes, .number = decision->number, .at_s = decision->at_s},
    .serial = attached->directory->head.serial,
    .key = features->key,
    .rows = features->rows,
    .deadline_s = features->deadline_s,
    .priority = features->priority,
    .prompt_tokens = attached->call.prompt_tokens,
    .max_tokens = attached->call.max_tokens,
    .row = -1,
    .model_bytes = (uint32_t)features->model.length,
    .version_bytes = (uint32_t)features->version.length,
    .tenant_bytes = (uint32_t)features->tenant.length,
    .beginnings = beginnings,
  };
  request->record.flags = (uint8_t)((features->keyed ? RECORD_KEYED : 0) | (features->sequence ? RECORD_SEQUENCE : 0) |
                                  (features->kind == BALANCER_MODEL || features->kind == BALANCER_SERVER ? RECORD_QUESTION : 0));
  char *at = (char *)(request + 1);
  *after = at + texts + of_prompt;
  char *hashes = at + texts;
  at = put_text(put_text(put_text(at, features->model), features->version), features->tenant);
  memset(at, 0, (size_t)(hashes - at));
  double *lengths = (double *)(hashes + beginnings * sizeof(uint64_t)), tokens = attached->call.prompt_tokens;
  for (uint32_t i = 0; i < beginnings; i++) {
    ((uint64_t *)hashes)[i] = prompt->checkpoints[i].hash;
    lengths[i] = balancer_beginning_tokens(prompt, i, tokens);
  }
  return request;
}

void journal_decision(struct attached *attached, const struct features *features, const struct decision *decision) {
  struct writer *writer = &attached->writer;
  uint64_t n = attached->workers, arrays = (JOURNAL_SEEN + 1) * sizeof(double) * n + filled_up(n);
  char *after;
  writer->open = NULL;
  writer->lacks_room = false;
  if (!wants(writer, decision->number)) return;
  struct request_record *request = place_request(attached, features, decision, arrays, &after);
  writer->lacks_room = !request;
  if (!request) return;
  request->record.kind = RECORD_DECISION;
  request->record.decider = (uint8_t)decision->decider;
  request->workers = (uint32_t)n;
  attached->kernel->look_up(attached->of_fleet_state, attached->options[STICKY].words, attached->of_call);
  double *out = (double *)after;
  uint64_t models = attached->models, column = (uint64_t)decision->column;
  for (int i = 0; i < JOURNAL_SEEN; i++, out += n) {
    const double *array = writer->seen[i];
    if (!SEEN[i].of_model)
      memcpy(out, array, sizeof *out * n);
    else
      for (uint64_t w = 0; w < n; w++) out[w] = array[w * models + column];
  }
  writer->open = request;
  writer->open_bytes = sizeof *request + (uint64_t)(after - (char *)(request + 1)) + arrays;
  writer->shares = out;
  writer->eligible = (uint8_t *)(out + n);
  memset(writer->eligible, 0, filled_up(n));
}

void journal_answer(struct attached *attached, const struct features *features, int64_t row, const uint8_t *eligible) {
  struct writer *writer = &attached->writer;
  struct request_record *request = writer->open;
  if (writer->lacks_room) count_dropped(writer);
  if (!request) return;
  writer->open = NULL;
  memcpy(writer->shares, writer->answer, sizeof *writer->shares * attached->workers);
  memcpy(writer->eligible, eligible, attached->workers);
  request->row = row;
  request->propensity = row < 0 ? 0 : attached->call.propensity;
  bool none = row < 0 || features->sequence;
  for (int i = 0; i < MOST_NAMED - 1; i++) request->fallbacks[i] = none ? -1 : attached->call.fallbacks[i];
  writer->at += writer->open_bytes;
}

void journal_refusal(struct attached *attached, const struct features *features, const struct decision *decision) {
  char *after;
  attached->writer.open = NULL;
  if (!wants(&attached->writer, decision->number)) return;
  struct request_record *request = place_request(attached, features, decision, 0, &after);
  if (!request) {
    count_dropped(&attached->writer);
    return;
  }
  request->record.kind = RECORD_REFUSAL;
  request->record.why = (uint8_t)decision->grpc_status;
  attached->writer.at += sizeof *request + (uint64_t)(after - (char *)(request + 1));
}

void journal_end(struct writer *writer, const struct ended_record *outcome) {
  if (!wants(writer, outcome->record.number)) return;
  journal_start(writer);
  struct ended_record *record = place_for(writer, sizeof *record);
  if (!record) {
    count_dropped(writer);
    return;
  }
  *record = *outcome;
  record->record.bytes = sizeof *record;
  record->record.kind = RECORD_OUTCOME;
  writer->at += sizeof *record;
  journal_commit(writer);
}

/* The balancer's side, called from Python. */

EXPORTED uint64_t balancer_state_journal_bytes(void) { return sizeof(struct journal); }

/* Over zeros; `at`: where the one before ended. */
EXPORTED void balancer_state_journal_init(struct journal *journal, double share, uint64_t at) {
  journal->bytes = sizeof *journal;
  memcpy(journal->stamp, BALANCER_STAMP, sizeof journal->stamp);
  memcpy(journal->shared, SHARED_DIGEST, sizeof journal->shared);
  journal->share = share;
  atomic_store(&journal->written, at);
  atomic_store(&journal->read, at);
  atomic_thread_fence(memory_order_release);
  journal->magic = JOURNAL_MAGIC;
}

EXPORTED uint64_t balancer_state_journal_written(const struct journal *journal) {
  return atomic_load_explicit(&journal->written, memory_order_acquire);
}
EXPORTED uint64_t balancer_state_journal_dropped(const struct journal *journal) {
  return atomic_load_explicit(&journal->dropped, memory_order_relaxed);
}

/* Copies what was written from `read` on, at most so much and up to the ring's end; returns how much, or all ones where
   that cannot be. */
EXPORTED uint64_t balancer_state_journal_take(const struct journal *journal, uint64_t read, void *out, uint64_t most) {
  uint64_t there = balancer_state_journal_written(journal) - read, at = read % JOURNAL_RING_BYTES;
  if (there > JOURNAL_RING_BYTES || there % 8 || read % 8) return UINT64_MAX;
  if (there > JOURNAL_RING_BYTES - at) there = JOURNAL_RING_BYTES - at;
  if (there > most) there = most;
  memcpy(out, journal->ring + at, there);
  return there;
}

/* It may be written over now. */
EXPORTED void balancer_state_journal_done(struct journal *journal, uint64_t read) {
  atomic_store_explicit(&journal->read, read, memory_order_release);
}
