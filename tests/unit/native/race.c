/* Several threads decide and end requests, as those of an Envoy do, while another one does what the balancer does.

   race KERNEL.so FOLDER THREADS ROUNDS: so often the balancer does all that it does; says what was counted. The folder is as a balancer leaves it, with a directory 1
   and a directory 2 alike. For the thread sanitizer, which sees all but the kernel. */
#define _GNU_SOURCE
#include "decide.h"

#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

enum { MOST_THREADS = 16, FLYING = 8, OFTEN = 16, SELDOM = 100, MOST_READ = 512 };

/* The balancer's functions, which Python calls. */
void balancer_state_init(struct control *control, uint64_t seed, uint64_t number, uint64_t stale_after_ns, uint64_t hung_after_ns);
void balancer_state_publish(struct control *control, uint64_t serial);
void balancer_state_beat(struct control *control);
void balancer_state_serve(struct control *control, uint64_t serving);
void balancer_state_replaced(struct control *control);
uint64_t balancer_state_number(const struct control *control);
void balancer_state_set_number(struct control *control, uint64_t number);
uint64_t balancer_state_count(struct control *control, uint64_t which);
uint64_t balancer_state_in_flight(const struct control *control);
uint64_t balancer_state_ticket(const struct control *control, uint64_t seat);
uint64_t balancer_state_last_ticket(const struct control *control);
bool balancer_state_due(const struct control *control, double before_s);
uint64_t balancer_state_take(struct control *control, uint64_t which, void *out, uint64_t most);
void balancer_state_set_selector(struct control *control, const struct selector *selector);
uint64_t balancer_state_watched(const struct control *control, uint64_t side);
uint64_t balancer_state_owed(struct control *control);
void balancer_state_row_removed(struct control *control, int64_t row);
uint64_t balancer_state_give_up(struct control *control, double before_s, uint64_t ticket, bool waiting, struct slot *out,
                                uint64_t most);

static struct source *source;
static const char *folder;
static _Atomic bool done;
static _Atomic uint64_t taken, turned_away, told;

struct flying {
  struct attached *attached;
  struct features features;
  struct decision decision;
};

static void end(struct flying *flying, unsigned nth) {
  struct ending ending = {.http_status = 200, .grpc_status = nth % 5 ? 0 : 14, .latency_s = 0.001};
  const char *comma = memchr(flying->decision.words, ',', flying->decision.length);
  size_t length = comma ? (size_t)(comma - flying->decision.words) : flying->decision.length;
  memcpy(ending.endpoint, flying->decision.words, length);
  judge(&ending, TEXT("via_upstream"), true);
  while (!finish(source, flying->attached, &flying->features, &flying->decision, &ending)) usleep(100);
  source_give(source, flying->attached);
  flying->attached = NULL;
}

static void *envoys_thread(void *unused) {
  struct flying *flying = calloc(FLYING, sizeof *flying);
  if (!flying) exit(2);
  for (unsigned nth = 0; !done; nth++) {
    struct flying *one = &flying[nth % FLYING];
    if (one->attached) end(one, nth);
    one->features = (struct features){.kind = BALANCER_INFERENCE, .grpc = true, .rows = 1, .deadline_s = INFINITY, .model = TEXT("a")};
    if (nth % 7 == 0) one->features.model = TEXT("nobody");
    if (nth % 3 == 0) one->features.keyed = one->features.sequence = true, one->features.key = nth;
    if (!(one->attached = source_take(source))) {
      usleep(100);
      continue;
    }
    struct text field = TEXT("priority");
    if (nth % 11 == 0) invalid(one->attached, &one->features, 400, 3, field);
    decide(source, one->attached, &one->features, &one->decision);
    if (one->decision.answer == TAKEN) {
      taken++;
      continue;
    }
    if (one->decision.answer == TURNED_AWAY) {
      turned_away++;
    } else {
      usleep(100);
    }
    source_give(source, one->attached);
    one->attached = NULL;
  }
  for (unsigned nth = 0; nth < FLYING; nth++)
    if (flying[nth].attached) end(&flying[nth], nth);
  free(flying);
  return unused;
}

static void put(const char *name, const void *content, size_t bytes) {
  char path[600], draft[600];
  snprintf(path, sizeof path, "%s/%s", folder, name);
  snprintf(draft, sizeof draft, "%s/.draft", folder);
  FILE *file = fopen(draft, "wb");
  if (!file || fwrite(content, 1, bytes, file) != bytes || fclose(file) || rename(draft, path)) exit(2);
}

static void read_all(struct control *control) {
  static struct outcome read[MOST_READ];
  static struct canary_event canary_events[MOST_READ];
  for (uint64_t count; (count = balancer_state_take(control, OUTCOMES_RING, read, MOST_READ));) told += count;
  while (balancer_state_take(control, CANARY_EVENTS_RING, canary_events, MOST_READ)) continue;
}

/* Another file takes its place, while the lock of this one is kept. */
static void replace(struct control *control, uint64_t serial) {
  static struct slot slots[SLOTS];
  struct control *made = calloc(1, sizeof *made);
  if (!made || !balancer_state_lock(control, UINT64_C(1000000000))) exit(2);
  balancer_state_replaced(control);
  balancer_state_give_up(control, INFINITY, 0, false, slots, SLOTS);
  balancer_state_init(made, 7, balancer_state_number(control), UINT64_C(5000000000), UINT64_C(5000000000));
  balancer_state_serve(made, 1);
  balancer_state_publish(made, serial);
  put("control", made, sizeof *made);
  free(made);
  read_all(control);
}

/* Other fleet_state, alike. */
static void renew(struct attached *attached) {
  struct balancer_block *fleet_state = attached->fleet_state.memory;
  void *copy = malloc(attached->fleet_state.bytes);
  if (!fleet_state || !copy) exit(2);
  memcpy(copy, fleet_state, attached->fleet_state.bytes);
  put("fleet_state", copy, attached->fleet_state.bytes);
  fleet_state->in_force = 0;
  free(copy);
}

/* Half of the numbers for either policy; now and then somebody is to look, and time changes who decides. */
static void steer(struct control *control) {
  double now_s = seconds_of(now_ns());
  struct selector selector = {
    .on = 1,
    .share = 0.5,
    .until_s = now_s + 0.01,
    .compared_from_s = now_s,
    .sides = {{POLICY, now_s + 0.001, 1}, {NEW, now_s, 1e-6}},
  };
  balancer_state_set_selector(control, &selector);
  balancer_state_watched(control, 0);
  balancer_state_owed(control);
}

static void be_balancer(struct attached *attached, unsigned round) {
  static struct slot slots[64];
  struct control *control = attached->control;
  uint64_t serial = 1 + round % 2;
  balancer_state_beat(control);
  read_all(control);
  balancer_state_due(control, seconds_of(now_ns()) - 1);
  balancer_state_in_flight(control);
  balancer_state_number(control);
  balancer_state_ticket(control, 0);
  balancer_state_last_ticket(control);
  balancer_state_count(control, PICKED);
  if (!balancer_state_lock(control, UINT64_C(1000000000))) exit(2);
  balancer_state_set_number(control, balancer_state_number(control) + 1);
  steer(control);
  if (round % 3 == 0) balancer_state_row_removed(control, (int64_t)(round % 30));
  if (round % 5 == 0) balancer_state_give_up(control, seconds_of(now_ns()) - 0.01, 0, false, slots, 64);
  if (round % OFTEN == 1 && attached->fleet_state.memory) renew(attached);
  balancer_state_publish(control, serial);
  balancer_state_unlock(control);
  if (round % SELDOM == SELDOM - 1) replace(control, serial);
}

int main(int count, char **arguments) {
  pthread_t threads[MOST_THREADS];
  const char *why = NULL;
  if (count != 5 || !(source = source_new(arguments[1], arguments[2], &why))) return 2;
  folder = arguments[2];
  unsigned made = (unsigned)atoi(arguments[3]), rounds = (unsigned)atoi(arguments[4]);
  if (made > MOST_THREADS) return 2;
  for (unsigned i = 0; i < made; i++)
    if (pthread_create(&threads[i], NULL, envoys_thread, NULL)) return 2;
  for (unsigned round = 0; round < rounds;) {
    struct attached *attached = source_take(source);
    if (!attached) return 3;
    if (attached_in_force(attached)) be_balancer(attached, round++);
    source_give(source, attached);
    usleep(200);
  }
  done = true;
  for (unsigned i = 0; i < made; i++) pthread_join(threads[i], NULL);
  struct attached *last = source_take(source);
  read_all(last->control);
  uint64_t flying = balancer_state_in_flight(last->control);
  source_give(source, last);
  source_leave(source);
  printf("%" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64 "\n", taken, turned_away, told, flying);
  return 0;
}
