/* A worker does not wait for a client that sends or reads slowly, so such a request keeps its place there for no longer than
   the client takes to show it. Its end is recorded, and learned from, as any other's. */
#define _GNU_SOURCE
#include "decide.h"

#include <string.h>

/* What is not counted for want of the lock stays as it is until the request ends. */
static bool enter(struct attached *attached) {
  return attached_alive(attached) && balancer_state_lock(attached->control, WAIT_NS);
}

static bool is_there(const struct attached *attached, int64_t row, int64_t column) {
  return row >= 0 && (uint64_t)row < attached->workers && (uint64_t)column < attached->models;
}

/* With the lock held. */
static void count(struct attached *attached, balancer_function *how, int64_t row, int64_t column, double rows) {
  struct balancer_call *call = &attached->call;
  if (!is_there(attached, row, column)) return;
  call->picked = row;
  call->model = column;
  call->rows = rows;
  call->keyed = 0;
  call->prompt_tokens = 0;
  call->now_s = seconds_of(now_ns());
  how(attached->of_fleet_state, attached->options[STICKY].words, attached->of_call);
}

void end_prompt(struct attached *attached, struct slot *slot, double answering_s, double output_tokens) {
  struct balancer_call *call = &attached->call;
  if (!(slot->beside > 0) || !is_there(attached, slot->row, slot->column)) return;
  call->picked = slot->row;
  call->model = slot->column;
  call->to_compute = slot->to_compute;
  call->beside = slot->beside;
  call->latency_s = answering_s;
  call->output_tokens = output_tokens;
  attached->kernel->end_prompt(attached->of_fleet_state, attached->options[STICKY].words, attached->of_call);
  slot->beside = slot->to_compute = 0;
}

void place_begins(struct source *source, struct attached *attached, struct decision *decision) {
  if (decision->left || !enter(attached)) return;
  struct slot *slot = slot_of(attached, decision);
  struct balancer_call *call = &attached->call;
  if (slot && slot->to_compute > 0 && attached_refresh(source, attached) && is_there(attached, slot->row, slot->column)) {
    slot->first_token_s = seconds_of(now_ns());
    call->picked = slot->row;
    call->model = slot->column;
    call->to_compute = slot->to_compute;
    call->ahead = slot->ahead;
    call->latency_s = slot->first_token_s - slot->at_s;
    attached->kernel->first_token(attached->of_fleet_state, attached->options[STICKY].words, attached->of_call);
    slot->to_compute = 0;
  }
  balancer_state_unlock(attached->control);
}

void place_leave(struct source *source, struct attached *attached, struct decision *decision) {
  if (decision->left || !enter(attached)) return;
  struct slot *slot = slot_of(attached, decision);
  if (slot && attached_refresh(source, attached)) {
    count(attached, attached->kernel->count_out, slot->row, slot->column, slot->rows);
    end_prompt(attached, slot, 0, 0);
    slot_give(attached->control, decision->slot);
    decision->left = true;
  }
  balancer_state_unlock(attached->control);
}

void place_waits(struct attached *attached, struct decision *decision) {
  if (!enter(attached)) return;
  struct slot *slot = slot_of(attached, decision);
  if (slot) slot_waits(attached->control, decision->slot, true);
  balancer_state_unlock(attached->control);
}

static void take_again(struct attached *attached, const struct features *features, struct decision *decision) {
  const char *comma = memchr(decision->words, ',', decision->length);
  struct text worker = {decision->words, comma ? (size_t)(comma - decision->words) : decision->length};
  int64_t row = directory_row(attached->directory, worker, features->port, decision->row);
  uint32_t place = row < 0 ? NO_SLOT : slot_take(attached->control);
  if (place == NO_SLOT) return;
  struct slot slot = {
    .number = decision->number,
    .ticket = attached->ticket,
    .row = row,
    .column = decision->column,
    .rows = features->rows,
    .at_s = seconds_of(now_ns()),
  };
  slot_fill(attached->control, place, &slot);
  decision->slot = place;
  count(attached, attached->kernel->take, row, slot.column, slot.rows);
}

void place_resume(struct source *source, struct attached *attached, const struct features *features,
                  struct decision *decision) {
  if (decision->left || !enter(attached)) return;
  struct slot *slot = slot_of(attached, decision);
  if (slot) slot_waits(attached->control, decision->slot, false);
  else if (attached_refresh(source, attached)) take_again(attached, features, decision);
  balancer_state_unlock(attached->control);
}
