/* What the balancer and the Envoys of one machine share beside the books: file `control` in the balancer's folder.

   The balancer makes it and gives it up; whoever has the lock may call the kernel over the books and change the slots.
   All sizes are fixed, so that nothing in the file says how far to reach. Times are of CLOCK_MONOTONIC. */
#ifndef MODULE_STATE_H
#define MODULE_STATE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define EXPORTED __attribute__((visibility("default")))

enum { STATE_VERSION = 1, SLOTS = 65536, OUTCOMES = 16384, SEATS = 64, ENDPOINT_BYTES = 64 };
#define STATE_MAGIC UINT64_C(0x6576697461)
#define NO_SLOT UINT32_MAX

/* A request in flight that was counted in. */
struct slot {
  uint64_t number;  /* of the decision */
  uint64_t ticket;  /* of the Envoy that has it; 0: the slot is free */
  int64_t row;      /* of the worker, moved by the balancer when rows move; -1: it is gone */
  int64_t column;   /* of the model */
  double rows;
  double at_s;
  uint32_t next;    /* free slot */
  uint32_t chosen;  /* 1: the policy chose among several, so that no client did */
};

enum decided_by { BY_POLICY = 1, BY_LEAST_REQUEST, REFUSED };
enum void_kind { VOID_NONE, VOID_REQUEST, VOID_CLIENT, VOID_DEADLINE };

/* How a request ended, for the balancer's metrics and logs: the estimators have learned of it. */
struct outcome {
  uint64_t number;
  double at_s, latency_s, first_byte_s; /* latency: not a number where none was measured */
  double propensity;
  int32_t column;
  uint16_t http_status;
  int16_t grpc_status; /* -1: none */
  uint8_t source, kind, grpc, ok, void_kind, refusal, retried, unserved;
  uint32_t policy; /* that decided, by the directory's number */
  char endpoint[ENDPOINT_BYTES]; /* that served it; empty: none */
  char picked[ENDPOINT_BYTES];
};

enum count { PICKED, LEAST_LOCKED, LEAST_STALE, ASKED, REFUSALS, SLOTS_FULL, OUTCOMES_LOST, DECIDE_NS, TRIALS_LOST, COUNTS = 16 };

enum { OWED = 4096, TRIALS = 16384, NO_SIDE = 2, MODEL_BYTES = 64 };

/* One of the two who may decide. */
struct side {
  uint64_t decider;
  double looks_from_s; /* from then on a decision is to be looked at */
  double slow_s;       /* decisions that take longer are told of; infinite: nobody watches them */
};

/* Who decides, as it stands; see balancer/core/trials/steering.py. */
struct steering {
  uint64_t on; /* 0: the policy in force, always */
  uint64_t lots, shadow_lots;
  double share; /* of the numbers, of the second side */
  double shadow_share;
  double until_s;     /* from then on who decides may be another */
  double told_from_s; /* from then on decisions are told of */
  struct side sides[NO_SIDE];
};

enum trial_kind { TRIAL_TAKEN = 1, TRIAL_SHED, TRIAL_ENDED, TRIAL_DROPPED };

/* What guards and rollouts are told of a request. */
struct trial {
  uint64_t number;
  uint64_t watched; /* decisions of its side so far that its guard counts */
  double at_s;
  double seconds; /* that the decision took */
  double value_s; /* deadline; of what ended, its latency, not a number: none */
  int32_t row;
  uint8_t what, side, ok;
  char model[MODEL_BYTES]; /* or its beginning */
};

struct seat {
  uint64_t ticket; /* of who sits there, or sat last */
};

struct control {
  uint64_t magic, version, bytes;
  char stamp[16];
  _Atomic uint64_t in_force; /* 0: another file has taken its place */
  uint64_t stale_after_ns, seed;
  _Atomic uint64_t heartbeat_ns;
  _Atomic uint64_t serving;   /* 0: whoever is asked over ext_proc decides */
  _Atomic uint64_t directory; /* serial of the directory in force; 0: none yet */
  uint64_t number;            /* of the next decision */
  uint64_t last_ticket;
  uint32_t free_slot, free_slots;
  struct seat seats[SEATS];
  _Alignas(64) _Atomic uint32_t lock; /* 0: free, 1: taken, 2: taken and awaited */
  _Alignas(64) _Atomic uint64_t counts[COUNTS];
  _Alignas(64) _Atomic uint64_t written; /* outcomes, ever; by who has the lock */
  _Alignas(64) _Atomic uint64_t read;    /* of them, by the balancer */
  struct steering steering;
  uint64_t watched[NO_SIDE];
  uint64_t owed_in, owed_out; /* numbers left to the balancer, ever, and those that it took */
  uint64_t owed[OWED];
  _Alignas(64) _Atomic uint64_t trials_written;
  _Alignas(64) _Atomic uint64_t trials_read;
  struct slot slots[SLOTS];
  struct outcome outcomes[OUTCOMES];
  struct trial trials[TRIALS];
};

uint64_t now_ns(void);
/* To some milliseconds, and a tenth of the time. */
uint64_t about_now_ns(void);

static inline double seconds_of(uint64_t ns) { return (double)ns * 1e-9; }
/* As Python's time.monotonic makes a float of it. */

/* The lock; false: it was not to be had in time. */
EXPORTED bool balancer_state_lock(struct control *control, uint64_t wait_ns);
EXPORTED void balancer_state_unlock(struct control *control);

static inline void add(struct control *control, enum count which, uint64_t by) {
  atomic_fetch_add_explicit(&control->counts[which], by, memory_order_relaxed);
}

/* With the lock held: a slot for a request, NO_SLOT where all are taken; and back. */
uint32_t slot_take(struct control *control);
void slot_give(struct control *control, uint32_t place);

/* With the lock held: the place of one more outcome; null where the balancer has not read those before. */
struct outcome *outcome_place(struct control *control);
void outcome_done(struct control *control);

#endif
