#define _GNU_SOURCE
#include "attach.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define MOST_STALE_NS UINT64_C(10000000000)
#define LOOK_EVERY_NS UINT64_C(100000000)
#define OWNED_FOR_NS UINT64_C(20000000)
enum { MOST_LOGGED = 200 };

void log_warning(struct source *source, const char *what, const char *why) {
  if (!CALLBACK(log) || (source && atomic_fetch_add(&source->logged, 1) >= MOST_LOGGED)) return;
  char line[512];
  int length = snprintf(line, sizeof line, "balancer: %s: %s", what, why);
  if (length < 0) return;
  CALLBACK(log)(LOG_WARNING, (struct text){line, (size_t)length < sizeof line ? (size_t)length : sizeof line - 1});
}

static balancer_function *function(void *library, const char *name) {
  char symbol[160];
  snprintf(symbol, sizeof symbol, "balancer_%.128s", name);
  void *found = dlsym(library, symbol);
  balancer_function *made;
  memcpy(&made, &found, sizeof made);
  return made;
}

struct source *source_new(const char *kernel, const char *folder, const char **why) {
  struct source *source = calloc(1, sizeof *source);
  *why = "no memory";
  if (!source) return NULL;
  pthread_mutex_init(&source->mutex, NULL);
  snprintf(source->folder, sizeof source->folder, "%s", folder);
  struct kernel *k = &source->kernel;
  *why = "the library cannot be loaded";
  if ((k->library = dlopen(kernel, RTLD_NOW | RTLD_LOCAL))) {
    const char *stamp = dlsym(k->library, "balancer_stamp");
    k->take = function(k->library, "take");
    k->count_out = function(k->library, "count_out");
    k->finish = function(k->library, "finish");
    k->look_up = function(k->library, "look_up");
    k->bid = function(k->library, "bid");
    k->match = function(k->library, "match");
    k->first_token = function(k->library, "first_token");
    k->end_prompt = function(k->library, "end_prompt");
    *why = NULL;
    if (!stamp || strcmp(stamp, BALANCER_STAMP)) *why = "the library is of other sources than this module";
    else if (!k->take || !k->count_out || !k->finish || !k->bid || !k->look_up || !k->match || !k->first_token || !k->end_prompt)
      *why = "the library lacks functions";
  }
  if (!*why) return source;
  free(source);
  return NULL;
}

static void unmap(struct mapped *file) {
  if (file->memory) munmap(file->memory, file->bytes);
  file->memory = NULL;
}

static void attached_free(struct attached *attached) {
  for (int i = 0; i < DECIDERS; i++) free(attached->options[i].block);
  unmap(&attached->fleet_state);
  journal_close(&attached->writer);
  directory_free(attached->directory);
  for (struct names *names = atomic_load(&attached->names); names;) {
    struct names *before = names->before;
    free(names);
    names = before;
  }
  if (attached->control) munmap(attached->control, sizeof *attached->control);
  if (attached->seat >= 0) close(attached->seat);
  if (attached->file >= 0) close(attached->file);
  if (attached->folder >= 0) close(attached->folder);
  free(attached);
}

void source_leave(struct source *source) {
  pthread_mutex_lock(&source->mutex);
  struct attached *left = source->current;
  source->current = NULL;
  source->next_look_ns = UINT64_MAX;
  bool last = left && --left->refs == 0;
  pthread_mutex_unlock(&source->mutex);
  if (last) attached_free(left);
}

/* A file of our own user or root's, mapped whole; it is kept open where `kept` is to have it. */
static bool map(int folder, const char *name, struct mapped *found, uint64_t *inode, int *kept) {
  struct stat about;
  int file = openat(folder, name, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
  if (file < 0) return false;
  found->memory = NULL;
  if (!fstat(file, &about) && S_ISREG(about.st_mode) && about.st_size > 0) {
    found->bytes = (uint64_t)about.st_size;
    void *memory = mmap(NULL, found->bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, file, 0);
    if (memory != MAP_FAILED) found->memory = memory;
    if (inode) *inode = about.st_ino;
  }
  if (kept && found->memory)
    *kept = file;
  else
    close(file);
  return found->memory != NULL;
}

static const char *objection(const struct mapped *file) {
  const struct control *control = file->memory;
  if (file->bytes != sizeof *control || !is_state(control)) return "none yet";
  if (control->version != STATE_VERSION || control->bytes != sizeof *control) return "of another version";
  if (memcmp(control->stamp, BALANCER_STAMP, sizeof control->stamp) ||
      memcmp(control->shared, SHARED_DIGEST, sizeof control->shared))
    return "of a balancer of other sources; both must be of one version";
  if (control->stale_after_ns > MOST_STALE_NS || control->hung_after_ns > MOST_STALE_NS) return "of a balancer that may be dead for too long";
  return atomic_load(&control->in_force) ? NULL : "given up";
}

/* A seat is a locked file, which is free again when this process ends, however it does. */
static bool take_seat(struct attached *attached) {
  for (int seat = 0; seat < SEATS; seat++) {
    char name[24];
    snprintf(name, sizeof name, "seat-%d", seat);
    int file = openat(attached->folder, name, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (file < 0) return false;
    if (!flock(file, LOCK_EX | LOCK_NB)) {
      if (!balancer_state_lock(attached->control, LOOK_EVERY_NS / 10)) {
        close(file);
        return false;
      }
      attached->seat = file;
      attached->ticket = attached->control->last_ticket + 1;
      POKE(attached->control->last_ticket, attached->ticket);
      POKE(attached->control->seats[seat], attached->ticket);
      balancer_state_unlock(attached->control);
      return true;
    }
    close(file);
  }
  return false;
}

/* Once, while it stays the same: balancers may be away for long. */
static void log_once(struct source *source, const char *why) {
  if (source->logged_last != why) log_warning(source, "the state cannot be used, it is", why);
  source->logged_last = why;
}

/* By the source's mutex: another state than the one at hand, if there is one. */
static void look(struct source *source) {
  struct attached *made = calloc(1, sizeof *made);
  if (!made) return;
  made->kernel = &source->kernel;
  made->seat = made->file = -1;
  pthread_mutex_init(&made->mutex, NULL);
  made->folder = open(source->folder, O_PATH | O_DIRECTORY | O_CLOEXEC);
  struct mapped file = {0};
  struct attached *before = source->current;
  if (made->folder < 0 || !map(made->folder, "control", &file, &made->inode, &made->file)) {
    attached_free(made);
    log_once(source, "not there, or another user's");
    return;
  }
  const char *why = objection(&file);
  if (why || (before && before->inode == made->inode)) {
    unmap(&file);
    attached_free(made);
    if (why) log_once(source, why);
    return;
  }
  made->control = file.memory;
  made->stale_after_ns = made->control->stale_after_ns;
  made->hung_after_ns = made->control->hung_after_ns;
  if (!take_seat(made)) {
    log_once(source, "without a free seat, or its lock is held");
    attached_free(made);
    return;
  }
  balancer_bind_call(&made->call, made->of_call);
  if (balancer_state_lock(made->control, LOOK_EVERY_NS / 10)) {
    attached_refresh(source, made);
    balancer_state_unlock(made->control);
  }
  made->refs = 1;
  source->logged_last = NULL;
  source->current = made;
  if (before && --before->refs == 0) attached_free(before);
}

bool attached_owned(struct attached *attached) {
  uint64_t now = about_now_ns();
  if (atomic_load_explicit(&attached->ownerless, memory_order_relaxed)) return false;
  if (now - atomic_load_explicit(&attached->owned_ns, memory_order_relaxed) < OWNED_FOR_NS) return true;
  bool free = !flock(attached->file, LOCK_SH | LOCK_NB);
  if (free) flock(attached->file, LOCK_UN);
  if (free || errno != EWOULDBLOCK) {
    /* For good: a balancer that begins anew has another file. */
    atomic_store_explicit(&attached->ownerless, true, memory_order_relaxed);
    return false;
  }
  atomic_store_explicit(&attached->owned_ns, now, memory_order_relaxed);
  return true;
}

struct attached *source_take(struct source *source) {
  pthread_mutex_lock(&source->mutex);
  if (!source->current || !attached_alive(source->current)) {
    uint64_t now = now_ns();
    if (now >= source->next_look_ns) {
      source->next_look_ns = now + LOOK_EVERY_NS;
      look(source);
    }
  }
  struct attached *attached = source->current;
  if (attached) attached->refs++;
  pthread_mutex_unlock(&source->mutex);
  return attached;
}

void source_give(struct source *source, struct attached *attached) {
  pthread_mutex_lock(&source->mutex);
  uint64_t left = --attached->refs;
  pthread_mutex_unlock(&source->mutex);
  if (!left) attached_free(attached);
}

bool source_has(struct source *source, const struct attached *attached) {
  pthread_mutex_lock(&source->mutex);
  bool has = source->current == attached;
  pthread_mutex_unlock(&source->mutex);
  return has;
}

static bool has_fleet_state(const struct attached *attached) {
  const struct balancer_block *fleet_state = attached->fleet_state.memory;
  return fleet_state && fleet_state->in_force && fleet_state->generation == attached->generation;
}

static bool has_directory(const struct attached *attached, uint64_t serial) {
  return attached->directory && attached->directory->head.serial == serial;
}

void *words_at(const struct attached *attached, int array, uint64_t words) {
  char *start = attached->fleet_state.memory, *end = start + attached->fleet_state.bytes, *at = balancer_at(start, array);
  bool within = at >= start && at <= end && (uint64_t)(end - at) / sizeof(uint64_t) >= words;
  return within && (uintptr_t)at % sizeof(uint64_t) == 0 ? at : NULL;
}

static bool bind_prompt(struct attached *attached) {
  attached->prompt.hashes = words_at(attached, BALANCER_DECISION_CHECKPOINT, BALANCER_MOST_CHECKPOINTS);
  attached->prompt.lengths = words_at(attached, BALANCER_DECISION_CHECKPOINT_TOKENS, BALANCER_MOST_CHECKPOINTS);
  attached->prompt.to_compute = words_at(attached, BALANCER_DECISION_TO_COMPUTE, 1);
  attached->prompt.ahead = words_at(attached, BALANCER_DECISION_AHEAD, 1);
  attached->prompt.beside = words_at(attached, BALANCER_DECISION_BESIDE, 1);
  return attached->prompt.hashes && attached->prompt.lengths && attached->prompt.to_compute && attached->prompt.ahead &&
         attached->prompt.beside;
}

static bool refresh_fleet_state(struct source *source, struct attached *attached) {
  struct balancer_block *fleet_state = attached->fleet_state.memory;
  if (has_fleet_state(attached)) return true;
  attached->generation = 0;
  if (!fleet_state || !fleet_state->in_force) {
    unmap(&attached->fleet_state);
    if (!map(attached->folder, "fleet_state", &attached->fleet_state, NULL, NULL)) return false;
    fleet_state = attached->fleet_state.memory;
  }
  enum balancer_status status = balancer_bind_fleet_state(fleet_state, attached->fleet_state.bytes, attached->of_fleet_state);
  if (status || !fleet_state->in_force) {
    log_warning(source, "the fleet's state cannot be used", balancer_status_text(status));
    return false;
  }
  attached->workers = fleet_state->workers;
  attached->models = fleet_state->models;
  attached->mask = balancer_at(fleet_state, BALANCER_DECISION_MASK);
  if (!journal_bind(attached) || !bind_prompt(attached)) return false;
  attached->generation = fleet_state->generation;
  return true;
}

/* What the kernel follows of a policy's numbers, it does not check: how many there are, how weights fit each other, which
   function takes them. So they are what the balancer wrote, in every bit: the end of the name is their digest. */
static void *content_named(int folder, const char *name, size_t *bytes) {
  const char *end = strrchr(name, '-');
  char digest[17];
  void *content = end ? content_of(folder, name, DIRECTORY_MOST_BYTES, bytes) : NULL;
  if (!content) return NULL;
  snprintf(digest, sizeof digest, "%016" PRIx64, balancer_state_digest(content, *bytes));
  if (!strcmp(digest, end + 1)) return content;
  free(content);
  return NULL;
}

static bool load_options(struct attached *attached, int which) {
  struct options *options = &attached->options[which];
  struct text named = directory_text(attached->directory, attached->directory->head.deciders[which].options);
  char name[64];
  size_t bytes = 0;
  free(options->block);
  options->block = NULL;
  options->answer = NULL;
  if (!named.length) return true;
  if (named.length >= sizeof name || memchr(named.ptr, '/', named.length)) return false;
  snprintf(name, sizeof name, "%.*s", (int)named.length, named.ptr);
  struct balancer_block *block = options->block = content_named(attached->folder, name, &bytes);
  if (!block || balancer_bind_options(block, bytes, options->words)) return false;
  options->room_workers = block->room_workers;
  if (!memchr(block->entry, 0, sizeof block->entry) || strncmp(block->entry, "answer_", 7)) return false;
  options->answer = function(attached->kernel->library, block->entry);
  return options->answer != NULL;
}

/* Headers that count whatever the directory names, once the body is there. */
static const char *const ALWAYS[] = {BALANCER_GRPC_TIMEOUT, BALANCER_REQUEST_ID_HEADER};

static bool keep_names(struct attached *attached) {
  const struct directory *directory = attached->directory;
  struct text found[NAMED_HEADERS];
  size_t bytes = 0;
  for (int i = 0; i < NAMED_HEADERS; i++) bytes += directory->head.headers[i].length;
  struct names *before = atomic_load(&attached->names), *made = calloc(1, sizeof *made + bytes);
  if (!made) return false;
  bool differ = !before;
  char *at = made->texts;
  for (int i = 0; i < NAMED_HEADERS; i++) {
    struct text text = directory_text(directory, directory->head.headers[i]);
    memcpy(at, text.ptr, text.length);
    found[i] = (struct text){text.length ? at : NULL, text.length};
    if (text.length) made->bits |= name_bit(at, text.length);
    at += text.length;
    const struct text *old = before ? (const struct text *)&before->of + i : NULL;
    differ = differ || old->length != text.length || (text.length && memcmp(old->ptr, text.ptr, text.length));
  }
  if (!differ) {
    free(made);
    return true;
  }
  made->of = (struct balancer_names){found[MODEL],    found[ROWS],   found[KEY],     found[SEQUENCE],
                                     found[PRIORITY], found[TENANT], found[DEADLINE]};
  for (size_t i = 0; i < sizeof ALWAYS / sizeof *ALWAYS; i++) made->bits |= name_bit(ALWAYS[i], strlen(ALWAYS[i]));
  made->before = before;
  atomic_store(&attached->names, made);
  return true;
}

/* Without a journal it is decided all the same. */
static void refresh_journal(struct source *source, struct attached *attached) {
  if (!(attached->directory->head.flags & DECISION_LOG))
    journal_close(&attached->writer);
  else if (!journal_open(&attached->writer, attached->folder))
    log_warning(source, "decisions cannot be recorded for the decision log", "the journal is none");
}

static bool refresh_directory(struct source *source, struct attached *attached) {
  uint64_t serial = atomic_load_explicit(&attached->control->directory, memory_order_acquire);
  if (has_directory(attached, serial)) return true;
  if (!serial || attached->failed_serial == serial) return false;
  const char *why = "no memory";
  directory_free(attached->directory);
  attached->directory = directory_load(attached->folder, serial, &why);
  for (int i = 0; attached->directory && i < DECIDERS; i++)
    if (!load_options(attached, i)) {
      directory_free(attached->directory);
      attached->directory = NULL;
      why = "it names options that cannot be used";
    }
  if (attached->directory) atomic_store(&attached->limits_tenants, !!(attached->directory->head.flags & LIMITS_TENANTS));
  if (attached->directory && keep_names(attached)) {
    refresh_journal(source, attached);
    return true;
  }
  directory_free(attached->directory);
  attached->directory = NULL;
  attached->failed_serial = serial;
  log_warning(source, "the directory cannot be used, it is", why);
  return false;
}

/* Whether rows and masks of the directory are those of the fleet_state. */
static bool fits(const struct attached *attached) {
  const struct directory_head *head = &attached->directory->head;
  if (head->generation != attached->generation || head->workers != attached->workers) return false;
  for (int i = 0; i < DECIDERS; i++)
    if (attached->options[i].answer && attached->options[i].room_workers < attached->workers) return false;
  return true;
}

bool attached_readable(const struct attached *attached) {
  return attached->directory && attached->generation && fits(attached);
}

bool attached_up_to_date(const struct attached *attached) {
  uint64_t serial = atomic_load_explicit(&attached->control->directory, memory_order_acquire);
  return has_fleet_state(attached) && has_directory(attached, serial) && fits(attached);
}

bool attached_refresh(struct source *source, struct attached *attached) {
  if (attached_up_to_date(attached)) return true;
  pthread_mutex_lock(&attached->mutex);
  bool usable = refresh_fleet_state(source, attached) && refresh_directory(source, attached) && fits(attached);
  pthread_mutex_unlock(&attached->mutex);
  return usable;
}
