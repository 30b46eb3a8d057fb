#define _GNU_SOURCE
#include "state.h"

#include "kernel.h"

#include <linux/futex.h>
#include <math.h>
#include <sched.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { SPINS = 200 };

uint64_t now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

uint64_t about_now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static inline void pause_briefly(void) {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

/* A mutex of one word (Drepper, "Futexes are tricky", 2011), since one of the C library's has addresses in it, which
   must not be followed where others can write. */
bool balancer_state_lock(struct control *control, uint64_t wait_ns) {
  uint32_t seen = 0;
  for (int spin = 0; spin < SPINS; spin++) {
    seen = 0;
    if (atomic_compare_exchange_weak_explicit(&control->lock, &seen, 1, memory_order_acquire, memory_order_relaxed))
      return true;
    pause_briefly();
  }
  uint64_t until_ns = now_ns() + wait_ns;
  while (atomic_exchange_explicit(&control->lock, 2, memory_order_acquire) != 0) {
    uint64_t now = now_ns();
    if (now >= until_ns) return false;
    uint64_t left_ns = until_ns - now;
    struct timespec left = {(time_t)(left_ns / 1000000000u), (long)(left_ns % 1000000000u)};
    syscall(SYS_futex, &control->lock, FUTEX_WAIT, 2, &left, NULL, 0);
  }
  return true;
}

void balancer_state_unlock(struct control *control) {
  if (atomic_exchange_explicit(&control->lock, 0, memory_order_release) == 2)
    syscall(SYS_futex, &control->lock, FUTEX_WAKE, 1, NULL, NULL, 0);
}

uint32_t slot_take(struct control *control) {
  uint32_t place = control->free_slot;
  if (place >= SLOTS || control->slots[place].ticket) return NO_SLOT;
  control->free_slot = control->slots[place].next;
  POKE(control->free_slots, control->free_slots - 1);
  return place;
}

void slot_fill(struct control *control, uint32_t place, const struct slot *with) {
  struct slot *slot = &control->slots[place];
  double at_s = with->at_s;
  slot->number = with->number;
  slot->row = with->row;
  slot->column = with->column;
  slot->rows = with->rows;
  slot->chosen = with->chosen;
  slot->to_compute = with->to_compute;
  slot->ahead = with->ahead;
  slot->beside = with->beside;
  slot->first_token_s = 0;
  if (with->waits) slot_waits(control, place, true);
  __atomic_store(&slot->at_s, &at_s, __ATOMIC_RELAXED);
  POKE(slot->ticket, with->ticket);
}

void slot_waits(struct control *control, uint32_t place, bool waits) {
  if (control->slots[place].waits == waits) return;
  POKE(control->slots[place].waits, waits);
  POKE(control->waiting, control->waiting + (waits ? 1 : UINT32_MAX));
}

void slot_give(struct control *control, uint32_t place) {
  if (control->slots[place].waits) slot_waits(control, place, false);
  POKE(control->slots[place].ticket, 0);
  control->slots[place].next = control->free_slot;
  control->free_slot = place;
  POKE(control->free_slots, control->free_slots + 1);
}

static const struct {
  size_t at, bytes;
  uint64_t room;
  enum count lost;
} RING[RINGS] = {
  [OUTCOMES_RING] = {offsetof(struct control, outcomes), sizeof(struct outcome), OUTCOMES, OUTCOMES_LOST},
  [CANARY_EVENTS_RING] = {offsetof(struct control, canary_events), sizeof(struct canary_event), CANARY_EVENTS,
                          CANARY_EVENTS_LOST},
  [LINES_RING] = {offsetof(struct control, lines), sizeof(struct line), LINES, LINES_LOST},
  [PROMPTS_RING] = {offsetof(struct control, prompts), sizeof(struct sent_prompt), PROMPTS, PROMPTS_LOST},
};

static void *in_ring(struct control *control, enum ring_of which, uint64_t number) {
  return (char *)control + RING[which].at + number % RING[which].room * RING[which].bytes;
}

void *ring_place(struct control *control, enum ring_of which) {
  struct ring *ring = &control->rings[which];
  uint64_t written = atomic_load_explicit(&ring->written, memory_order_relaxed);
  if (written - atomic_load_explicit(&ring->read, memory_order_acquire) < RING[which].room)
    return memset(in_ring(control, which, written), 0, RING[which].bytes);
  add(control, RING[which].lost, 1);
  return NULL;
}

void ring_done(struct control *control, enum ring_of which) {
  atomic_fetch_add_explicit(&control->rings[which].written, 1, memory_order_release);
}

/* The balancer's side, called from Python. */

EXPORTED uint64_t balancer_state_bytes(void) { return sizeof(struct control); }
EXPORTED const char *balancer_state_shared(void) { return SHARED_DIGEST; }
EXPORTED const char *balancer_state_stamp(void) { return BALANCER_STAMP; }

/* Over zeros. Envoys take it for a state once `balancer_state_publish` was called. */
EXPORTED void balancer_state_init(struct control *control, uint64_t seed, uint64_t number, uint64_t stale_after_ns,
                                  uint64_t hung_after_ns) {
  control->version = STATE_VERSION;
  control->bytes = sizeof *control;
  memcpy(control->stamp, BALANCER_STAMP, sizeof control->stamp);
  memcpy(control->shared, SHARED_DIGEST, sizeof control->shared);
  control->stale_after_ns = stale_after_ns;
  control->hung_after_ns = hung_after_ns;
  control->seed = seed;
  control->number = number;
  for (uint32_t place = 0; place < SLOTS; place++) control->slots[place].next = place + 1;
  control->free_slots = SLOTS;
  atomic_store(&control->in_force, 1);
}

EXPORTED void balancer_state_publish(struct control *control, uint64_t serial) {
  atomic_store(&control->directory, serial);
  atomic_store(&control->heartbeat_ns, now_ns());
  __atomic_store_n(&control->magic, STATE_MAGIC, __ATOMIC_RELEASE);
}

EXPORTED void balancer_state_beat(struct control *control) { atomic_store(&control->heartbeat_ns, now_ns()); }
EXPORTED void balancer_state_serve(struct control *control, uint64_t serving) {
  atomic_store(&control->serving, serving);
}
EXPORTED void balancer_state_replaced(struct control *control) { atomic_store(&control->in_force, 0); }
EXPORTED uint64_t balancer_state_number(const struct control *control) { return PEEK(control->number); }
EXPORTED void balancer_state_set_number(struct control *control, uint64_t number) { POKE(control->number, number); }
EXPORTED uint64_t balancer_state_count(struct control *control, uint64_t which) {
  return which < COUNTS ? atomic_load(&control->counts[which]) : 0;
}
EXPORTED uint64_t balancer_state_in_flight(const struct control *control) {
  return SLOTS - PEEK(control->free_slots);
}
EXPORTED uint64_t balancer_state_ticket(const struct control *control, uint64_t seat) {
  return seat < SEATS ? PEEK(control->seats[seat]) : 0;
}

EXPORTED uint64_t balancer_state_last_ticket(const struct control *control) { return PEEK(control->last_ticket); }

/* Without the lock, so that looking costs nobody anything: whether some request was sent before `before_s`, or, with
   `waiting`, some that waits for its client. */
EXPORTED bool balancer_state_due(const struct control *control, double before_s, bool waiting) {
  for (uint32_t place = 0; place < SLOTS && (!waiting || PEEK(control->waiting)); place++) {
    double at_s;
    if (!PEEK(control->slots[place].ticket) || (waiting && !PEEK(control->slots[place].waits))) continue;
    __atomic_load(&control->slots[place].at_s, &at_s, __ATOMIC_RELAXED);
    if (at_s < before_s) return true;
  }
  return false;
}

/* Copies at most `most` of what waits in that ring out, in order; returns how many. */
EXPORTED uint64_t balancer_state_take(struct control *control, uint64_t which, void *out, uint64_t most) {
  if (which >= RINGS) return 0;
  struct ring *ring = &control->rings[which];
  uint64_t read = atomic_load_explicit(&ring->read, memory_order_relaxed), bytes = RING[which].bytes;
  uint64_t there = atomic_load_explicit(&ring->written, memory_order_acquire) - read;
  uint64_t count = there < most ? there : most;
  for (uint64_t i = 0; i < count; i++)
    memcpy((char *)out + i * bytes, in_ring(control, (enum ring_of)which, read + i), bytes);
  atomic_store_explicit(&ring->read, read + count, memory_order_release);
  return count;
}

/* With the lock held, as the next ones. */
EXPORTED void balancer_state_set_selector(struct control *control, const struct selector *selector) {
  control->selector = *selector;
}

EXPORTED uint64_t balancer_state_watched(const struct control *control, uint64_t side) {
  return side < SIDES ? control->watched[side] : 0;
}

/* The number that was left to the balancer first; UINT64_MAX: none. */
EXPORTED uint64_t balancer_state_owed(struct control *control) {
  return control->owed_out == control->owed_in ? UINT64_MAX : control->owed[control->owed_out++ % OWED];
}

EXPORTED void balancer_state_set_lines_share(struct control *control, double share) {
  __atomic_store(&control->lines_share, &share, __ATOMIC_RELAXED);
}

/* With the lock held: the worker of that row is gone, and those after it move up. */
EXPORTED void balancer_state_row_removed(struct control *control, int64_t row) {
  for (uint32_t place = 0; place < SLOTS; place++) {
    struct slot *slot = &control->slots[place];
    if (!slot->ticket || slot->row < row) continue;
    slot->row = slot->row == row ? -1 : slot->row - 1;
  }
}

/* With the lock held: gives up to `most` slots back, of requests that were sent before `before_s`, with `waiting` of those
   that wait for their clients alone, or of the Envoy that has `ticket`; writes what they were counted in with. */
EXPORTED uint64_t balancer_state_give_up(struct control *control, double before_s, uint64_t ticket, bool waiting,
                                         struct slot *out, uint64_t most) {
  uint64_t count = 0;
  for (uint32_t place = 0; place < SLOTS && count < most; place++) {
    struct slot *slot = &control->slots[place];
    if (!slot->ticket || (waiting && !slot->waits) || !(slot->at_s < before_s || slot->ticket == ticket)) continue;
    out[count++] = *slot;
    slot_give(control, place);
  }
  return count;
}
