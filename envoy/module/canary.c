#define _GNU_SOURCE
#include "canary.h"

#include <math.h>
#include <string.h>

/* So long the balancer is waited for, to decide what was left to it or to look at what it was told; then it is another
   request's turn. */
#define CLAIM_S 0.05

/* As `placing` of balancer/scheduler/keys.py. */
static enum decider decider_for(const struct directory *directory, const struct features *features, enum decider by) {
  if (!features->keyed) return by;
  if (features->sequence) return SEQUENCES;
  return directory->head.flags & STICKY_KEYS && !directory->head.deciders[by].needs_key ? STICKY : by;
}

/* Whether the balancer must decide it: since time has passed, or for its shadow. `hashed`: no policy decides. */
static bool to_be_seen(struct selector *selector, bool hashed, const struct decision *out) {
  if (out->at_s >= selector->until_s) {
    selector->until_s = out->at_s + CLAIM_S;
    return true;
  }
  return !hashed && balancer_draw(selector->shadow_draws ^ out->number) < selector->shadow_share;
}

/* Leaves the number to the balancer, for a request that it is asked about; false: too many wait for that. */
static bool owe(struct control *control, struct decision *out) {
  if (control->owed_in - control->owed_out >= OWED) return false;
  control->owed[control->owed_in++ % OWED] = out->number;
  out->owed = true;
  return true;
}

bool select_decider(struct attached *attached, const struct features *features, struct decision *out) {
  struct control *control = attached->control;
  struct selector *selector = &control->selector;
  enum decider by = POLICY;
  out->side = SIDES;
  if (selector->on) {
    out->side = balancer_draw(selector->draws ^ out->number) < selector->share;
    uint64_t decider = selector->sides[out->side].decider;
    if (decider >= DECIDERS) return false;
    by = (enum decider)decider;
  }
  out->decider = decider_for(attached->directory, features, by);
  bool hashed = out->decider != by;
  if (selector->on && to_be_seen(selector, hashed, out) && owe(control, out)) return false;
  if (hashed) out->side = SIDES;
  if (attached->options[out->decider].answer) return true;
  if (selector->on) owe(control, out);
  return false;
}

void report_decision(struct attached *attached, const struct features *features, struct decision *out, double seconds,
                     bool taken) {
  struct control *control = attached->control;
  if (out->side >= SIDES) return;
  struct side *side = &control->selector.sides[out->side];
  uint64_t watched = isfinite(side->slow_s) ? ++control->watched[out->side] : control->watched[out->side];
  bool look = out->at_s >= side->looks_from_s, compared = out->at_s >= control->selector.compared_from_s;
  if (!look && !compared && !(seconds > side->slow_s)) return;
  struct canary_event *event = ring_place(control, CANARY_EVENTS_RING);
  if (!event) return;
  if (look) side->looks_from_s = out->at_s + CLAIM_S;
  event->number = out->number;
  event->watched = watched;
  event->at_s = out->at_s;
  event->seconds = seconds;
  event->value_s = features->deadline_s;
  event->rows = features->rows;
  event->priority = features->priority;
  event->look = look;
  event->row = (int32_t)out->row;
  event->what = taken ? CANARY_TAKEN : CANARY_SHED;
  event->side = (uint8_t)out->side;
  size_t length = features->model.length < sizeof event->model ? features->model.length : sizeof event->model;
  memcpy(event->model, features->model.length ? features->model.ptr : "", length);
  out->reported = taken && compared;
  ring_done(control, CANARY_EVENTS_RING);
}

void report_end(struct attached *attached, const struct decision *decision, const struct ending *ending) {
  struct canary_event *event = decision->reported ? ring_place(attached->control, CANARY_EVENTS_RING) : NULL;
  if (!event) return;
  event->number = decision->number;
  event->at_s = attached->call.now_s;
  event->value_s = ending->latency_s;
  event->what = ending->judged.void_kind == VOID_CLIENT ? CANARY_DROPPED : CANARY_ENDED;
  event->ok = ending->judged.ok;
  ring_done(attached->control, CANARY_EVENTS_RING);
}
