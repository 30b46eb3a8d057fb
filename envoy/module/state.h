/* What the balancer and the Envoys of one machine share beside the fleet_state: file `control` in the balancer's folder.

   The balancer makes it and gives it up; whoever has the lock may call the kernel over the fleet_state and change the slots.
   All sizes are fixed, so that nothing in the file says how far to reach. Times are of CLOCK_MONOTONIC. */
#ifndef MODULE_STATE_H
#define MODULE_STATE_H

#include "shared.h"

#include <stdatomic.h>

#define EXPORTED __attribute__((visibility("default")))

enum { STATE_VERSION = 7 }; /* of `struct control`; the digest tells of the rest */
#define STATE_MAGIC UINT64_C(0x6576697461)
#define NO_SLOT UINT32_MAX

/* What is changed under the lock and looked at without it: never seen halfway. */
#define PEEK(place) __atomic_load_n(&(place), __ATOMIC_RELAXED)
#define POKE(place, value) __atomic_store_n(&(place), (value), __ATOMIC_RELAXED)

/* What is written by who has the lock, and read by the balancer without it. */
struct ring {
  _Alignas(64) _Atomic uint64_t written; /* ever */
  _Alignas(64) _Atomic uint64_t read;    /* of them */
};

struct control {
  uint64_t magic, version, bytes;
  char stamp[16], shared[16]; /* of the kernel's sources, and SHARED_DIGEST */
  _Atomic uint64_t in_force; /* 0: another file has taken its place */
  /* Without a sign of life: after the first it is looked whether the balancer exists, after the second it hangs. */
  uint64_t stale_after_ns, hung_after_ns, seed;
  _Atomic uint64_t heartbeat_ns;
  _Atomic uint64_t serving;   /* 0: whoever is asked over ext_proc decides */
  _Atomic uint64_t directory; /* serial of the directory in force; 0: none yet */
  double lines_share; /* of the decisions, by the draws of their numbers: these have a line */
  uint64_t number;            /* of the next decision */
  uint64_t last_ticket;
  uint32_t free_slot, free_slots;
  uint32_t waiting; /* slots whose requests wait for their clients */
  uint64_t seats[SEATS]; /* the ticket of the Envoy that has it, or had it last */
  _Alignas(64) _Atomic uint32_t lock; /* 0: free, 1: taken, 2: taken and awaited */
  _Alignas(64) _Atomic uint64_t counts[COUNTS];
  struct ring rings[RINGS];
  struct selector selector;
  uint64_t watched[SIDES];
  uint64_t owed_in, owed_out; /* numbers left to the balancer, ever, and those that it took */
  uint64_t owed[OWED];
  struct slot slots[SLOTS];
  struct outcome outcomes[OUTCOMES];
  struct line lines[LINES];
  struct canary_event canary_events[CANARY_EVENTS];
  struct sent_prompt prompts[PROMPTS];
};

uint64_t now_ns(void);
/* To some milliseconds, and a tenth of the time. */
uint64_t about_now_ns(void);

/* As Python's time.monotonic makes a float of it. */
static inline double seconds_of(uint64_t ns) { return (double)ns * 1e-9; }

/* Whether the balancer has published it. */
static inline bool is_state(const struct control *control) {
  return __atomic_load_n(&control->magic, __ATOMIC_ACQUIRE) == STATE_MAGIC;
}

/* The lock; false: it was not to be had in time. */
EXPORTED bool balancer_state_lock(struct control *control, uint64_t wait_ns);
EXPORTED void balancer_state_unlock(struct control *control);

static inline void add(struct control *control, enum count which, uint64_t by) {
  atomic_fetch_add_explicit(&control->counts[which], by, memory_order_relaxed);
}

/* With the lock held: a slot for a request, NO_SLOT where all are taken; and back. */
uint32_t slot_take(struct control *control);
void slot_fill(struct control *control, uint32_t place, const struct slot *with);
void slot_give(struct control *control, uint32_t place);
/* Whether its request waits for its client. */
void slot_waits(struct control *control, uint32_t place, bool waits);

/* With the lock held: the place of one more in that ring, cleared; null where the balancer has not read those before. It is
   read once it is done. */
void *ring_place(struct control *control, enum ring_of which);
void ring_done(struct control *control, enum ring_of which);

#endif
