#define _GNU_SOURCE
#include "canary.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* Longer than a busy machine keeps a process from its core, once: a process that was put to sleep with the lock is not
   waited for again. */
#define WAIT_ONCE_NS UINT64_C(200000000)

__attribute__((format(printf, 4, 5))) static void turn_away(struct decision *out, uint32_t http, uint32_t grpc,
                                                             const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  int length = vsnprintf(out->words, sizeof out->words, format, arguments);
  va_end(arguments);
  out->length = length < 0 ? 0 : (size_t)length < sizeof out->words ? (size_t)length : sizeof out->words - 1;
  out->http_status = http;
  out->grpc_status = grpc;
  out->answer = TURNED_AWAY;
}

#define SHOWN(text) (int)(text).length, (text).ptr

static void unknown(struct decision *out, struct text model, struct text version) {
  if (version.length)
    turn_away(out, SAY_UNKNOWN_VERSION(model, version));
  else
    turn_away(out, SAY_UNKNOWN(model));
}

/* Null where `out` is an answer already. */
static const struct entry *entry_for(const struct directory *directory, const struct features *features,
                                     struct decision *out) {
  const struct directory_head *head = &directory->head;
  if (!features->model.length) return &directory->entries[head->no_model];
  const struct entry *found = directory_find(directory, features->model, features->version);
  if (found) return found;
  const struct entry *any_version = features->version.length ? directory_find(directory, features->model, TEXT("")) : NULL;
  bool listed = any_version != NULL;
  if (!(head->flags & REPORTS_REQUIRED)) {
    /* Of a listed model the pins decide, of the other ones nothing. */
    if (!listed && head->any_model != NO_ENTRY) return &directory->entries[head->any_model];
    return NULL;
  }
  if (listed && !any_version->loaded) {
    struct text quoted = directory_text(directory, any_version->quoted);
    turn_away(out, SAY_NOBODY(quoted));
  } else {
    unknown(out, features->model, features->version);
  }
  return NULL;
}

/* Why the kernel picked nobody. */
static void explain_refusal(struct attached *attached, const struct entry *entry, const struct features *features,
                            int64_t why, struct decision *out) {
  const struct directory *directory = attached->directory;
  struct text quoted = directory_text(directory, entry->quoted);
  struct text policy = directory_text(directory, directory->head.deciders[out->decider].name);
  double refused_at = attached->call.refused_at;
  switch (why) {
    case BALANCER_NOBODY: turn_away(out, SAY_NOBODY(quoted)); break;
    case BALANCER_FULL: turn_away(out, SAY_FULL(quoted, refused_at)); break;
    case BALANCER_LATE: turn_away(out, SAY_LATE(quoted, refused_at * 1000, features->deadline_s * 1000)); break;
    case BALANCER_SHED: turn_away(out, SAY_SHED(policy, quoted)); break;
    default: break; /* a row that is none: the balancer decides */
  }
}

/* False: there is no room for it, or it is none. */
static bool add_endpoint(struct decision *out, const char *endpoint) {
  size_t length = strlen(endpoint);
  if (!length || out->length + length + 1 > sizeof out->words) return false;
  if (out->length) out->words[out->length++] = ',';
  memcpy(out->words + out->length, endpoint, length);
  out->length += length;
  return true;
}

static void name_endpoints(struct attached *attached, const struct features *features, struct decision *out) {
  const struct balancer_call *call = &attached->call;
  size_t most = features->sequence ? 1 : MOST_NAMED;
  out->length = 0;
  for (size_t i = 0; i < most; i++) {
    int64_t row = i ? call->fallbacks[i - 1] : out->row;
    if (row >= 0 && (uint64_t)row < attached->workers)
      add_endpoint(out, attached->directory->workers[row].of[features->port]);
  }
}

static void fill_slot(struct attached *attached, const struct features *features, const struct decision *out, bool chosen) {
  struct slot slot = {
    .number = out->number,
    .ticket = attached->ticket,
    .row = out->row,
    .column = out->column,
    .rows = attached->call.rows,
    .at_s = out->at_s,
    .chosen = chosen,
    .waits = features->waits,
  };
  if (features->prompt) {
    slot.to_compute = *attached->prompt.to_compute;
    slot.ahead = *attached->prompt.ahead;
    slot.beside = *attached->prompt.beside;
  }
  slot_fill(attached->control, out->slot, &slot);
}

/* Leaves those in the mask that have such a port. */
static void keep_ports(struct attached *attached, enum balancer_port port) {
  if (!(attached->directory->head.flags & SEVERAL_PROTOCOLS)) return;
  for (uint64_t w = 0; w < attached->workers; w++)
    if (!*attached->directory->workers[w].of[port]) attached->mask[w] = 0;
}

/* 0: it has no prompt. */
static double prompt_tokens(const struct features *features, double tokens_a_byte) {
  if (!features->prompt) return 0;
  return fmin(fmax((double)features->body_bytes * tokens_a_byte, 1), BALANCER_MAX_PROMPT_TOKENS);
}

static double max_tokens(const struct features *features) { return features->prompt ? features->prompt->max_tokens : 0; }

/* What the prompt begins with, and what each worker has of it, for what is decided next. */
static void lay_out_prompt(struct attached *attached, const struct features *features) {
  const struct balancer_prompt *prompt = features->prompt;
  double tokens = attached->call.prompt_tokens;
  for (uint32_t i = 0; i < prompt->count; i++) {
    attached->prompt.hashes[i] = prompt->checkpoints[i].hash;
    attached->prompt.lengths[i] = balancer_beginning_tokens(prompt, i, tokens);
  }
  for (uint32_t i = prompt->count; i < BALANCER_MOST_CHECKPOINTS; i++) attached->prompt.lengths[i] = 0;
  attached->kernel->match(attached->of_fleet_state, attached->options[STICKY].words, attached->of_call);
}

/* Other balancers are to hear of it. */
static void tell_prompt(struct attached *attached, const struct features *features, const struct decision *out) {
  struct sent_prompt *sent = ring_place(attached->control, PROMPTS_RING);
  if (!sent) return;
  sent->row = out->row;
  sent->column = out->column;
  sent->tokens = attached->call.prompt_tokens;
  sent->count = features->prompt->count;
  memcpy(sent->hashes, attached->prompt.hashes, sent->count * sizeof *sent->hashes);
  memcpy(sent->lengths, attached->prompt.lengths, sent->count * sizeof *sent->lengths);
  ring_done(attached->control, PROMPTS_RING);
}

static void ask_kernel(struct attached *attached, const struct entry *entry, const struct features *features,
                       struct decision *out) {
  struct balancer_call *call = &attached->call;
  const struct options *options = &attached->options[out->decider];
  /* One by one, as the reports behind them take kilobytes. */
  call->model = out->column = entry->column;
  out->tokens_a_byte = entry->tokens_a_byte;
  call->rows = features->rows;
  call->key = features->key;
  call->keyed = features->keyed;
  call->deadline_s = features->deadline_s;
  call->priority = features->priority;
  call->number = out->number;
  call->now_s = out->at_s;
  call->seed = attached->control->seed;
  call->how = BALANCER_AT_ONCE | (features->sequence ? BALANCER_SEQUENCE : BALANCER_FRESH);
  uint32_t mask = features->sequence ? entry->members : entry->servable;
  memcpy(attached->mask, directory_mask(attached->directory, mask), attached->workers);
  keep_ports(attached, features->port);
  call->prompt_tokens = prompt_tokens(features, entry->tokens_a_byte);
  call->max_tokens = max_tokens(features);
  if (features->prompt) lay_out_prompt(attached, features);
  journal_decision(attached, features, out);
  bool compared = out->side < SIDES;
  uint64_t began_ns = compared ? now_ns() : 0;
  out->row = options->answer(attached->of_fleet_state, options->words, attached->of_call);
  double seconds = compared ? seconds_of(now_ns() - began_ns) : 0;
  if (out->row < 0 || (uint64_t)out->row >= attached->workers) {
    if (out->row == BALANCER_SHED) report_decision(attached, features, out, seconds, false);
    explain_refusal(attached, entry, features, out->row, out);
    if (out->row == BALANCER_SHED)
      journal_answer(attached, features, -1, attached->mask);
    else if (out->answer == TURNED_AWAY)
      journal_refusal(attached, features, out);
    return;
  }
  out->propensity = call->propensity;
  const uint8_t *members = directory_mask(attached->directory, entry->members);
  journal_answer(attached, features, out->row, features->sequence ? members : attached->mask);
  name_endpoints(attached, features, out);
  fill_slot(attached, features, out, out->decider != STICKY && out->decider != SEQUENCES && call->among > 1);
  if (out->length) {
    report_decision(attached, features, out, seconds, true);
    if (features->prompt) tell_prompt(attached, features, out);
    out->answer = TAKEN;
    return;
  }
  /* None of them is listed any more: back out. */
  end_prompt(attached, &attached->control->slots[out->slot], 0, 0);
  call->picked = out->row;
  attached->kernel->count_out(attached->of_fleet_state, options->words, attached->of_call);
}

/* With the lock held. */
static void decide_locked(struct attached *attached, const struct features *features, struct decision *out) {
  out->number = attached->control->number;
  POKE(attached->control->number, out->number + 1);
  const struct entry *entry = entry_for(attached->directory, features, out);
  if (out->answer == TURNED_AWAY) {
    attached->call.prompt_tokens = prompt_tokens(features, entry ? entry->tokens_a_byte : BALANCER_TOKENS_A_BYTE);
    attached->call.max_tokens = max_tokens(features);
    journal_refusal(attached, features, out);
  }
  if (!entry || (uint64_t)entry->column >= attached->models) return;
  if (!select_decider(attached, features, out)) return;
  /* Before anything is counted in. */
  if ((out->slot = slot_take(attached->control)) == NO_SLOT) {
    add(attached->control, SLOTS_FULL, 1);
    out->answer = LEAST_REQUEST;
    return;
  }
  ask_kernel(attached, entry, features, out);
  if (out->answer == TAKEN) return;
  slot_give(attached->control, out->slot);
  out->slot = NO_SLOT;
}

static void copy(char *out, size_t room, struct text text) {
  size_t length = text.length < room ? text.length : room - 1;
  memcpy(out, text.ptr ? text.ptr : "", length);
  out[length] = 0;
}

/* Of the requested model, as people see it. */
static int32_t column_shown(const struct attached *attached, const struct features *features) {
  if (!features->model.length) return 0;
  const struct entry *entry = attached->directory ? directory_find(attached->directory, features->model, TEXT("")) : NULL;
  return entry && entry->column ? (int32_t)entry->column : UNKNOWN_MODEL;
}

static void record_draw(struct outcome *outcome, const struct features *features, const struct decision *decision) {
  outcome->split = decision->split;
  outcome->draw = decision->draw;
  if (decision->draw & DRAWN_BY_KEY) outcome->key = features->key;
}

/* `field`: that was out of bounds, before there was a `decision`, which is null then. */
static void record_refusal(struct attached *attached, const struct features *features, const struct decision *decision,
                         uint32_t http_status, uint32_t grpc_status, struct text field) {
  struct outcome *outcome = ring_place(attached->control, OUTCOMES_RING);
  if (!outcome) return;
  uint64_t now = now_ns();
  outcome->at_s = seconds_of(now);
  outcome->pick_s = seconds_since(features->came_ns, now);
  outcome->decision_s = seconds_since(features->read_ns, now);
  outcome->latency_s = outcome->first_byte_s = outcome->first_token_s = outcome->answering_s = NAN;
  outcome->column = column_shown(attached, features);
  outcome->source = REFUSED;
  outcome->kind = (uint8_t)features->kind;
  outcome->port = (uint8_t)features->port;
  outcome->http_status = (uint16_t)http_status;
  outcome->grpc_status = features->grpc ? (int16_t)grpc_status : -1;
  outcome->refusal = (uint8_t)grpc_status;
  copy(outcome->endpoint, sizeof outcome->endpoint, field);
  if (decision) {
    outcome->directory = decision->directory;
    record_draw(outcome, features, decision);
  }
  ring_done(attached->control, OUTCOMES_RING);
}

/* For a log, where this decision is among the share that one is kept of. */
static void record_line(struct attached *attached, const struct features *features, const struct decision *out) {
  double share;
  __atomic_load(&attached->control->lines_share, &share, __ATOMIC_RELAXED);
  struct line *line = balancer_draw(out->number) < share ? ring_place(attached->control, LINES_RING) : NULL;
  if (!line) return;
  line->number = out->number;
  line->directory = out->directory;
  line->propensity = out->propensity;
  line->decider = (uint8_t)out->decider;
  copy(line->model, sizeof line->model, features->model);
  copy(line->request_id, sizeof line->request_id, features->request_id);
  copy(line->id, sizeof line->id, features->id);
  if (out->answer == TAKEN)
    copy(line->named, sizeof line->named, (struct text){out->words, out->length});
  else
    line->refusal = (uint8_t)out->grpc_status;
  ring_done(attached->control, LINES_RING);
}

void invalid(struct attached *attached, const struct features *features, uint32_t http_status, uint32_t grpc_status,
             struct text field) {
  if (!attached_alive(attached) || !balancer_state_lock(attached->control, WAIT_NS)) return;
  record_refusal(attached, features, NULL, http_status, grpc_status, field);
  add(attached->control, REFUSALS, 1);
  balancer_state_unlock(attached->control);
}

/* Without the lock: a sequence stays with its worker whatever becomes of the balancer, since any other one would refuse it.
   Limits cannot be kept to. */
static void place_sequence(struct attached *attached, const struct entry *entry, const struct features *features,
                           struct decision *out) {
  struct balancer_call call = {.key = features->key, .keyed = 1};
  int64_t of_call[BALANCER_CALL_WORDS];
  balancer_bind_call(&call, of_call);
  const uint8_t *members = directory_mask(attached->directory, entry->members);
  double least = INFINITY;
  out->row = -1;
  for (uint64_t w = 0; w < attached->workers; w++) {
    if (!members[w]) continue;
    call.picked = (int64_t)w;
    attached->kernel->bid(attached->of_fleet_state, attached->options[STICKY].words, of_call);
    if (call.bid < least) least = call.bid, out->row = call.picked;
  }
  name_endpoints(attached, features, out);
}

/* Without the lock: lists who may serve the request, for Envoy to choose among. Where not all of them have room in the
   list, those from a random one on. */
static void list_endpoints(struct attached *attached, const uint8_t *may, enum balancer_port port, struct decision *out) {
  uint64_t first = attached->workers ? balancer_mix(now_ns()) % attached->workers : 0;
  for (uint64_t i = 0; i < attached->workers; i++) {
    uint64_t row = (first + i) % attached->workers;
    const char *endpoint = attached->directory->workers[row].of[port];
    if (may[row] && *endpoint && !add_endpoint(out, endpoint)) break;
  }
  out->among = out->length > 0;
}

/* Without the lock, by the directory as it was last seen: pins, devices and loaded versions hold. `entry`: null where there
   is none for this version; `out` says why, where that is known. */
static void keep_within(struct attached *attached, const struct entry *entry, const struct features *features,
                        struct decision *out) {
  const struct directory *directory = attached->directory;
  const struct entry *listed = entry ? entry : directory_find(directory, features->model, TEXT(""));
  bool balanced = features->kind == BALANCER_INFERENCE || features->kind == BALANCER_STREAM;
  bool limited = balanced && listed && listed->limited;
  /* As the balancer would refuse it. */
  if (out->answer == TURNED_AWAY && limited) return;
  out->answer = LEAST_REQUEST;
  out->length = 0;
  if (!balanced) return;
  if (entry) list_endpoints(attached, directory_mask(directory, entry->servable), features->port, out);
  if (out->among || !limited) return;
  struct text quoted = directory_text(directory, listed->quoted);
  turn_away(out, SAY_NOBODY(quoted));
}

/* As `Split.draw` of balancer/scheduler/canary/split.py, with the number of the decision for the place in the order, or as
   balancer/extproc/pins.py. What it returns is `features`, or `of_version`, which is the same for the version that it gets. */
static const struct features *draw_version(const struct attached *attached, const struct features *features,
                                           struct features *of_version, uint64_t number, struct decision *out) {
  const struct directory *directory = attached->directory;
  if (!(directory->head.flags & GIVES_VERSIONS) || features->kind != BALANCER_INFERENCE || features->version.length ||
      features->compressed)
    return features;
  const struct entry *entry = directory_find(directory, features->model, TEXT(""));
  if (!entry || !entry->old.length) return features;
  uint64_t drawn_by = features->keyed ? features->key : number;
  bool new = entry->split && balancer_draw(entry->draws ^ balancer_mix(drawn_by)) < entry->share;
  out->split = (uint32_t)entry->split;
  out->draw = (uint8_t)(entry->split ? (new ? DRAWN_NEW : 0) | (features->keyed ? DRAWN_BY_KEY : 0) : 0);
  struct text version = directory_text(directory, new ? entry->new : entry->old);
  copy(out->version, sizeof out->version, version);
  *of_version = *features;
  of_version->version = (struct text){out->version, version.length};
  return of_version;
}

/* True: the lock is held. Its holder may be kept from its core: while the balancer exists, it is waited for. */
static bool lock_patiently(struct attached *attached) {
  bool kept = atomic_load_explicit(&attached->lock_kept, memory_order_relaxed);
  bool locked = balancer_state_lock(attached->control, WAIT_NS);
  if (!locked && !kept && attached_owned(attached)) {
    locked = balancer_state_lock(attached->control, WAIT_ONCE_NS);
    if (!locked) atomic_store_explicit(&attached->lock_kept, true, memory_order_relaxed);
  }
  if (locked && kept) atomic_store_explicit(&attached->lock_kept, false, memory_order_relaxed);
  return locked;
}

static void decide_by_fleet_state(struct source *source, struct attached *attached, const struct features *features,
                            struct decision *out) {
  struct control *control = attached->control;
  memset(out, 0, offsetof(struct decision, words));
  out->length = 0;
  out->slot = NO_SLOT;
  out->answer = LEAST_REQUEST;
  out->sequence = features->sequence;
  if (!attached_alive(attached)) {
    add(control, LEAST_STALE, 1);
    return;
  }
  if (!atomic_load_explicit(&control->serving, memory_order_relaxed)) {
    out->answer = BALANCER_DECIDES;
    add(control, LEFT_TO_BALANCER, 1);
    return;
  }
  if (!lock_patiently(attached)) {
    add(control, LEAST_LOCKED, 1);
    return;
  }
  out->answer = BALANCER_DECIDES;
  uint64_t number = control->number;
  out->at_ns = now_ns();
  out->at_s = seconds_of(out->at_ns);
  if (attached_refresh(source, attached)) {
    out->directory = attached->directory->head.serial;
    journal_start(&attached->writer);
    struct features of_version;
    features = draw_version(attached, features, &of_version, number, out);
    decide_locked(attached, features, out);
    if (out->answer == TURNED_AWAY && features->kind == BALANCER_MODEL && out->grpc_status != GRPC_SHED) {
      /* A question about a model that nobody can serve: any server knows what Triton answers to that. */
      struct features any_server = *features;
      any_server.model = any_server.version = any_server.tenant = TEXT("");
      any_server.keyed = any_server.sequence = false;
      any_server.rows = 1;
      any_server.deadline_s = INFINITY;
      any_server.priority = 0;
      out->answer = BALANCER_DECIDES;
      decide_locked(attached, &any_server, out);
    }
    if (out->answer == TAKEN && source->leaves_metadata) {
      const struct directory *directory = attached->directory;
      copy(out->policy, sizeof out->policy, directory_text(directory, directory->head.deciders[out->decider].name));
    }
    if (out->answer == TAKEN || out->answer == TURNED_AWAY) record_line(attached, features, out);
    if (out->answer == TURNED_AWAY) record_refusal(attached, features, out, out->http_status, out->grpc_status, TEXT(""));
    if (out->answer != BALANCER_DECIDES)
      journal_commit(&attached->writer);
    else if (!out->owed)
      POKE(control->number, number);
  }
  if (out->answer != LEAST_REQUEST)
    add(control, out->answer == TAKEN ? PICKED : out->answer == TURNED_AWAY ? REFUSALS : LEFT_TO_BALANCER, 1);
  balancer_state_unlock(control);
}

void decide(struct source *source, struct attached *attached, const struct features *features, struct decision *out) {
  decide_by_fleet_state(source, attached, features, out);
  if (out->answer != LEAST_REQUEST) return;
  out->length = 0;
  out->version[0] = 0;
  pthread_mutex_lock(&attached->mutex);
  if (attached_readable(attached)) {
    struct features of_version;
    features = draw_version(attached, features, &of_version, now_ns(), out);
    const struct entry *entry = entry_for(attached->directory, features, out);
    if (entry && features->sequence) place_sequence(attached, entry, features, out);
    if (out->answer == TURNED_AWAY || !out->length) keep_within(attached, entry, features, out);
  }
  pthread_mutex_unlock(&attached->mutex);
}

/* With the lock held. */
static void record_outcome(struct attached *attached, const struct features *features, const struct decision *decision,
                 const struct ending *ending, bool matched) {
  struct outcome *outcome = ring_place(attached->control, OUTCOMES_RING);
  if (!outcome) return;
  if (decision) {
    outcome->number = decision->number;
    outcome->directory = decision->directory;
    outcome->propensity = decision->propensity;
    outcome->decider = (uint8_t)decision->decider;
    record_draw(outcome, features, decision);
  }
  outcome->at_s = attached->call.now_s;
  outcome->source = decision ? BY_POLICY : BY_LEAST_REQUEST;
  outcome->pick_s = ending->pick_s;
  outcome->decision_s = ending->decision_s;
  outcome->latency_s = ending->latency_s;
  outcome->first_byte_s = ending->first_byte_s;
  outcome->bytes_in = ending->bytes_in;
  outcome->bytes_out = ending->bytes_out;
  outcome->column = column_shown(attached, features);
  outcome->kind = (uint8_t)features->kind;
  outcome->port = (uint8_t)features->port;
  outcome->prompt = features->prompt != NULL;
  outcome->first_token_s = ending->first_token_s;
  outcome->answering_s = ending->answering_s;
  outcome->prompt_tokens = ending->answered.prompt_tokens;
  outcome->cached_tokens = ending->answered.cached_tokens;
  outcome->output_tokens = ending->answered.output_tokens;
  outcome->http_status = (uint16_t)ending->http_status;
  outcome->grpc_status = (int16_t)ending->grpc_status;
  outcome->attempts = ending->attempts < UINT16_MAX ? (uint16_t)ending->attempts : UINT16_MAX;
  outcome->ok = ending->judged.ok;
  outcome->void_kind = (uint8_t)ending->judged.void_kind;
  outcome->aborted = (uint8_t)ending->aborted;
  outcome->matched = matched;
  memcpy(outcome->endpoint, ending->endpoint, sizeof outcome->endpoint);
  ring_done(attached->control, OUTCOMES_RING);
}

static void record_in_journal(struct attached *attached, const struct decision *decision, const struct ending *ending,
                              double first_token_s) {
  struct record record = {
    .flags = ending->judged.ok ? RECORD_OK : 0,
    .why = (uint8_t)ending->judged.void_kind,
    .number = decision->number,
    .at_s = attached->call.now_s,
  };
  struct ended_record outcome = {
    .record = record,
    .latency_s = ending->latency_s,
    .first_token_s = first_token_s > 0 ? first_token_s : NAN,
    .said_s = ending->said_s > 0 ? ending->said_s : attached->call.now_s,
    .output_tokens = ending->asked_again ? 0 : ending->answered.output_tokens,
    .cached_tokens = ending->asked_again ? 0 : ending->answered.cached_tokens,
  };
  memcpy(outcome.endpoint, ending->endpoint, sizeof outcome.endpoint);
  journal_end(&attached->writer, &outcome);
}

/* As `Router._finished` and `Recorder._outcome` have it. True: the pick still counted as in flight. */
static bool learn(struct attached *attached, const struct features *features, const struct decision *decision,
                  const struct ending *ending) {
  const struct kernel *kernel = attached->kernel;
  const int64_t *none = attached->options[STICKY].words;
  struct balancer_call *call = &attached->call;
  int64_t picked = -1, guess = decision ? decision->row : -1;
  bool chosen = false, matched = decision && decision->left;
  call->ok = ending->judged.ok;
  call->latency_s = ending->latency_s;
  call->model = 0;
  call->rows = 0;
  call->key = features->key;
  call->keyed = features->keyed;
  struct slot *slot = decision ? slot_of(attached, decision) : NULL;
  if (slot) {
    matched = true;
    picked = slot->row;
    chosen = slot->chosen;
  }
  bool nothing = ending->judged.void_kind == VOID_CLIENT || ending->judged.void_kind == VOID_DEADLINE || !ending->endpoint[0] ||
                 (ending->judged.void_kind == VOID_REQUEST && !chosen);
  struct text endpoint = {ending->endpoint, strlen(ending->endpoint)};
  int64_t served = nothing ? -1 : directory_row(attached->directory, endpoint, features->port, guess);
  if (slot) {
    double over_s = ending->said_s > 0 ? ending->said_s : call->now_s;
    double since_s = slot->first_token_s > 0 ? fmax(over_s - slot->first_token_s, 0) : 0;
    bool says = ending->judged.ok && served == picked && !ending->asked_again;
    end_prompt(attached, slot, since_s, says ? ending->answered.output_tokens : 0);
    call->latency_s = ending->latency_s;
    call->model = slot->column;
    call->rows = slot->rows;
    slot_give(attached->control, decision->slot);
  }
  if (picked >= (int64_t)attached->workers || (uint64_t)call->model >= attached->models) picked = -1, call->model = 0;
  call->picked = picked;
  call->served = served;
  call->prompt_tokens = 0;
  if (picked < 0) call->keyed = 0;
  if (!nothing)
    kernel->finish(attached->of_fleet_state, none, attached->of_call);
  else if (picked >= 0)
    kernel->count_out(attached->of_fleet_state, none, attached->of_call);
  return matched;
}

bool finish(struct source *source, struct attached *attached, const struct features *features,
            const struct decision *decision, const struct ending *ending) {
  struct control *control = attached->control;
  bool alive = attached_alive(attached);
  /* The slots have gone with a file that another one has taken the place of. */
  if (!attached_in_force(attached) || (!alive && !source_has(source, attached))) return true;
  if (!balancer_state_lock(control, alive ? WAIT_NS : 0)) return false;
  /* A balancer that gives no sign of life may be back, and count on what ended meanwhile. What it has changed is not
     looked up until then, as the files in the folder may be another one's. */
  if (!alive && !attached_up_to_date(attached)) {
    balancer_state_unlock(control);
    return false;
  }
  attached->call.now_s = seconds_of(now_ns());
  bool refreshed = attached_refresh(source, attached);
  const struct slot *slot = refreshed && decision ? slot_of(attached, decision) : NULL;
  double first_token_s = slot ? slot->first_token_s : 0;
  bool matched = refreshed && learn(attached, features, decision, ending);
  record_outcome(attached, features, decision, ending, matched);
  if (decision) report_end(attached, decision, ending);
  if (decision) record_in_journal(attached, decision, ending, first_token_s);
  balancer_state_unlock(control);
  return true;
}
