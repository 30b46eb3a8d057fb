/* This process's side of what is shared: the library, the files mapped, and what was found in them. */
#ifndef MODULE_ATTACH_H
#define MODULE_ATTACH_H

#include "directory.h"
#include "forwarded.h"
#include "journal.h"
#include "request.h"
#include "kernel.h"
#include "state.h"

#include <pthread.h>

/* Functions of the library. */
struct kernel {
  balancer_function *take, *count_out, *finish, *bid, *look_up, *match, *first_token, *end_prompt;
  void *library;
};

struct mapped {
  void *memory;
  uint64_t bytes;
};

/* A policy's numbers, bound. A copy, as what is written to it is for this process alone, and nobody may cut it short. */
struct options {
  void *block;
  int64_t words[BALANCER_OPTIONS_WORDS];
  balancer_function *answer;
  uint64_t room_workers;
};

/* One of 64 for a name that is not empty, so that most sets of names can be told apart at a glance. */
static inline uint64_t name_bit(const char *name, size_t length) {
  return UINT64_C(1) << ((length + 7 * (size_t)(uint8_t)name[length - 1]) & 63);
}

/* Names of headers in force; those before are kept until nobody can be reading them. */
struct names {
  struct balancer_names of;
  uint64_t bits; /* `name_bit` of each, and of those that always count */
  struct names *before;
  char texts[];
};

/* One balancer's state. What is below `directory` is used with the shared lock alone. But directory and fleet_state change with
   `mutex` too, so that who has that one may read them. */
struct attached {
  const struct kernel *kernel;
  struct control *control;
  uint64_t inode;
  uint64_t refs; /* by the source's mutex */
  uint64_t ticket, stale_after_ns, hung_after_ns;
  int folder, seat, file; /* the last one is `control`, locked while its balancer exists */
  _Atomic uint64_t owned_ns; /* when it was last found to */
  _Atomic bool ownerless, lock_kept;
  _Atomic(struct names *) names;
  _Atomic bool limits_tenants; /* as the directory says, for who has no lock */
  pthread_mutex_t mutex;
  struct directory *directory;
  uint64_t failed_serial; /* of the directory that could not be used; 0: none */
  struct mapped fleet_state;
  uint64_t generation; /* that the words below are of; 0: none */
  uint64_t workers, models;
  uint8_t *mask;
  struct {
    uint64_t *hashes;
    double *lengths, *to_compute, *ahead, *beside;
  } prompt; /* in the fleet's state, of the request that is decided or was decided last */
  int64_t of_fleet_state[BALANCER_FLEET_STATE_WORDS], of_call[BALANCER_CALL_WORDS];
  struct options options[DECIDERS];
  struct balancer_call call;
  struct writer writer;
};

/* Where to look for a state. */
struct source {
  struct kernel kernel;
  char folder[512];
  bool leaves_metadata; /* of what was decided */
  struct forwarded forwarded;
  pthread_mutex_t mutex;
  struct attached *current;
  uint64_t next_look_ns;
  const char *logged_last;
  _Atomic uint32_t logged; /* messages so far, so that nothing fills a log */
};

/* Null: the library cannot be used; `why` says why. */
struct source *source_new(const char *kernel, const char *folder, const char **why);
/* Its config is no more. The source itself stays, as requests may be under way. */
void source_leave(struct source *source);

/* The state in force, to be given back; null: there is none. */
struct attached *source_take(struct source *source);
void source_give(struct source *source, struct attached *attached);
/* Whether none has taken its place. */
bool source_has(struct source *source, const struct attached *attached);

/* Whether its balancer has not put another file in its place, which is still what it was. */
static inline bool attached_in_force(const struct attached *attached) {
  const struct control *control = attached->control;
  return is_state(control) && atomic_load_explicit(&control->in_force, memory_order_relaxed);
}

/* Whether its balancer's process exists. Asks the operating system, once in 20 ms. */
bool attached_owned(struct attached *attached);

/* Whether its balancer is alive: a process that is kept from its core gives no sign of life, and is not dead. */
static inline bool attached_alive(struct attached *attached) {
  uint64_t beat_ns = atomic_load_explicit(&attached->control->heartbeat_ns, memory_order_relaxed), now = about_now_ns();
  uint64_t age_ns = now > beat_ns ? now - beat_ns : beat_ns - now;
  if (age_ns > attached->stale_after_ns && (age_ns > attached->hung_after_ns || !attached_owned(attached))) return false;
  return attached_in_force(attached);
}

/* With the lock held: whether all is bound as its balancer left it, so that nothing has to be looked up. */
bool attached_up_to_date(const struct attached *attached);

/* With `mutex` held: whether directory and fleet_state, as they were when somebody had the lock, belong together. */
bool attached_readable(const struct attached *attached);

/* With the lock held: what has changed is looked up anew; false: there is nothing that can be decided by. */
bool attached_refresh(struct source *source, struct attached *attached);

/* Where that array of so many words lies in the fleet's state; null: not within it. */
void *words_at(const struct attached *attached, int array, uint64_t words);

void log_warning(struct source *source, const char *what, const char *why);

#endif
