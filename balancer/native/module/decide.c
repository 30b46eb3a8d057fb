#define _GNU_SOURCE
#include "decide.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* Longer than whoever has the lock works, and shorter than what a client notices. A process that was put to sleep with
   the lock is not waited for. */
#define WAIT_NS UINT64_C(2000000)

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

/* One decision in so many is timed. */
enum { SAMPLED = 16 };

#define SHOWN(text) (int)(text).length, (text).ptr

static void unknown(struct decision *out, struct text model, struct text version) {
  /* Triton's words, as in balancer/core/refusals.py. */
  if (version.length)
    turn_away(out, 404, 5, "Request for unknown model: '%.*s' version %.*s is not found", SHOWN(model), SHOWN(version));
  else
    turn_away(out, 404, 5, "Request for unknown model: '%.*s' is not found", SHOWN(model));
}

/* Null where `out` is an answer already. */
static const struct entry *entry_for(const struct directory *directory, const struct ask *ask, struct decision *out) {
  const struct directory_head *head = &directory->head;
  if (!ask->model.length) return &directory->entries[head->no_model];
  const struct entry *found = directory_find(directory, ask->model, ask->version);
  if (found) return found;
  const struct entry *any_version = ask->version.length ? directory_find(directory, ask->model, TEXT("")) : NULL;
  bool listed = any_version != NULL;
  if (!(head->flags & REPORTS_REQUIRED)) {
    /* Of a listed model the pins decide, of the other ones nothing. */
    if (!listed && head->any_model != NO_ENTRY) return &directory->entries[head->any_model];
    return NULL;
  }
  if (listed && !any_version->loaded) {
    struct text quoted = directory_text(directory, any_version->quoted);
    turn_away(out, 503, 14, "no worker may serve model %.*s now; retry later", SHOWN(quoted));
  } else {
    unknown(out, ask->model, ask->version);
  }
  return NULL;
}

/* Why the kernel picked nobody, in the words of balancer/core/refusals.py. */
static void say_why(struct attached *attached, const struct entry *entry, const struct ask *ask, enum decider by,
                    int64_t why, struct decision *out) {
  const struct directory *directory = attached->directory;
  struct text quoted = directory_text(directory, entry->quoted);
  struct text policy = by == POLICY ? directory_text(directory, directory->head.policy) : TEXT("consistent_hash");
  double refused_at = attached->call.refused_at;
  switch (why) {
    case BALANCER_NOBODY: turn_away(out, 503, 14, "no worker may serve model %.*s now; retry later", SHOWN(quoted)); break;
    case BALANCER_FULL:
      turn_away(out, 429, 8, "every worker for model %.*s has %.0f requests pending; retry later", SHOWN(quoted),
                refused_at);
      break;
    case BALANCER_LATE:
      turn_away(out, 429, 8, "model %.*s would take %.0f ms at best, the deadline is in %.3g ms", SHOWN(quoted),
                refused_at * 1000, ask->deadline_s * 1000);
      break;
    case BALANCER_SHED:
      turn_away(out, 429, 8, "policy %.*s sheds: no capacity for model %.*s now; retry later", SHOWN(policy),
                SHOWN(quoted));
      break;
    default: break; /* a row that is none: the balancer is asked */
  }
}

static enum decider decider_for(const struct directory *directory, const struct ask *ask) {
  uint64_t flags = directory->head.flags;
  if (!ask->keyed) return POLICY;
  if (ask->sequence) return SEQUENCES;
  return flags & STICKY_KEYS && !(flags & POLICY_NEEDS_KEY) ? STICKY : POLICY;
}

static void name_endpoints(struct attached *attached, const struct ask *ask, struct decision *out) {
  const struct balancer_call *call = &attached->call;
  size_t most = ask->sequence ? 1 : MOST_NAMED;
  out->length = 0;
  for (size_t i = 0; i < most; i++) {
    int64_t row = i ? call->fallbacks[i - 1] : out->row;
    if (row < 0 || (uint64_t)row >= attached->workers) continue;
    const char *endpoint = attached->directory->workers[row].of[ask->grpc];
    size_t length = strlen(endpoint);
    if (!length || out->length + length + 1 > sizeof out->words) continue;
    if (out->length) out->words[out->length++] = ',';
    memcpy(out->words + out->length, endpoint, length);
    out->length += length;
  }
}

static void fill_slot(struct attached *attached, const struct decision *out, bool chosen) {
  struct slot slot = {
    .number = out->number,
    .ticket = attached->ticket,
    .row = out->row,
    .column = out->column,
    .rows = attached->call.rows,
    .at_s = out->at_s,
    .chosen = chosen,
  };
  slot_fill(attached->control, out->slot, &slot);
}

static void ask_kernel(struct attached *attached, const struct entry *entry, const struct ask *ask,
                       struct decision *out) {
  struct balancer_call *call = &attached->call;
  enum decider by = decider_for(attached->directory, ask);
  const struct options *options = &attached->options[by];
  /* One by one, as the reports behind them take kilobytes. */
  call->model = out->column = entry->column;
  call->rows = ask->rows;
  call->key = ask->key;
  call->keyed = ask->keyed;
  call->deadline_s = ask->deadline_s;
  call->priority = ask->priority;
  call->number = out->number;
  call->now_s = out->at_s;
  call->seed = attached->control->seed;
  call->whole = ask->sequence ? BALANCER_WHOLE_SEQUENCE : BALANCER_WHOLE_REQUEST;
  uint32_t mask = ask->sequence ? entry->members : entry->servable;
  memcpy(attached->mask, directory_mask(attached->directory, mask), attached->workers);
  if (!ask->sequence && attached->directory->head.flags & REPORTS_REQUIRED)
    attached->kernel->keep_fresh(attached->of_books, options->words, attached->of_call);
  out->row = options->answer(attached->of_books, options->words, attached->of_call);
  if (out->row < 0 || (uint64_t)out->row >= attached->workers) {
    say_why(attached, entry, ask, by, out->row, out);
    return;
  }
  out->propensity = call->propensity;
  name_endpoints(attached, ask, out);
  fill_slot(attached, out, by == POLICY && call->among > 1);
  if (out->length) {
    out->answer = TAKEN;
    return;
  }
  /* None of them is listed any more: back out. */
  call->picked = out->row;
  attached->kernel->count_out(attached->of_books, options->words, attached->of_call);
}

/* With the lock held. This is `Router.route` of balancer/core/router.py over the same books. */
static void decide_locked(struct attached *attached, const struct ask *ask, struct decision *out) {
  out->number = attached->control->number;
  POKE(attached->control->number, out->number + 1);
  const struct entry *entry = entry_for(attached->directory, ask, out);
  if (!entry || (uint64_t)entry->column >= attached->models) return;
  /* Before anything is counted in. */
  if ((out->slot = slot_take(attached->control)) == NO_SLOT) {
    add(attached->control, SLOTS_FULL, 1);
    out->answer = LEAST_REQUEST;
    return;
  }
  ask_kernel(attached, entry, ask, out);
  if (out->answer == TAKEN) return;
  slot_give(attached->control, out->slot);
  out->slot = NO_SLOT;
}

static void copy(char *out, struct text text) {
  size_t length = text.length < ENDPOINT_BYTES ? text.length : ENDPOINT_BYTES - 1;
  memcpy(out, text.ptr ? text.ptr : "", length);
  out[length] = 0;
}

/* `field`: that was out of bounds. */
static void tell_refusal(struct attached *attached, const struct ask *ask, uint32_t http_status, uint32_t grpc_status,
                         struct text field) {
  struct outcome *told = outcome_place(attached->control);
  if (!told) return;
  told->at_s = seconds_of(now_ns());
  told->latency_s = told->first_byte_s = NAN;
  told->source = REFUSED;
  told->kind = (uint8_t)ask->kind;
  told->grpc = ask->grpc;
  told->http_status = (uint16_t)http_status;
  told->grpc_status = ask->grpc ? (int16_t)grpc_status : -1;
  told->refusal = (uint8_t)grpc_status;
  copy(told->picked, field);
  outcome_done(attached->control);
}

void invalid(struct attached *attached, const struct ask *ask, uint32_t http_status, uint32_t grpc_status,
             struct text field) {
  if (!attached_alive(attached) || !balancer_state_lock(attached->control, WAIT_NS)) return;
  tell_refusal(attached, ask, http_status, grpc_status, field);
  add(attached->control, REFUSALS, 1);
  balancer_state_unlock(attached->control);
}

void decide(struct source *source, struct attached *attached, const struct ask *ask, struct decision *out) {
  struct control *control = attached->control;
  memset(out, 0, offsetof(struct decision, words));
  out->length = 0;
  out->slot = NO_SLOT;
  out->answer = LEAST_REQUEST;
  if (!attached_alive(attached)) {
    add(control, LEAST_STALE, 1);
    return;
  }
  if (!atomic_load_explicit(&control->serving, memory_order_relaxed)) {
    out->answer = BALANCER_DECIDES;
    return;
  }
  if (!balancer_state_lock(control, WAIT_NS)) {
    add(control, LEAST_LOCKED, 1);
    return;
  }
  out->answer = BALANCER_DECIDES;
  out->sequence = ask->sequence;
  uint64_t began_ns = now_ns(), number = control->number;
  out->at_ns = began_ns;
  out->at_s = seconds_of(began_ns);
  if (attached_refresh(source, attached)) {
    decide_locked(attached, ask, out);
    if (out->answer == TURNED_AWAY && ask->kind == ABOUT_MODEL && out->grpc_status != 8) {
      /* A question about a model that nobody can serve: any server knows what Triton answers to that. */
      struct ask any_server = *ask;
      any_server.model = any_server.version = TEXT("");
      any_server.keyed = any_server.sequence = false;
      out->answer = BALANCER_DECIDES;
      decide_locked(attached, &any_server, out);
    }
    if (out->answer == TURNED_AWAY) tell_refusal(attached, ask, out->http_status, out->grpc_status, TEXT(""));
    if (out->answer == BALANCER_DECIDES) POKE(control->number, number);
  }
  if (number % SAMPLED == 0) add(control, DECIDE_NS, SAMPLED * (now_ns() - began_ns));
  add(control, out->answer == TAKEN ? PICKED : out->answer == TURNED_AWAY ? REFUSALS : ASKED, 1);
  balancer_state_unlock(control);
}

static bool begins(struct text text, const char *with) {
  size_t length = strlen(with);
  return text.length >= length && !memcmp(text.ptr, with, length);
}

static bool contains(struct text text, const char *part) {
  return text.length && memmem(text.ptr, text.length, part, strlen(part));
}

static struct judged by_status(int grpc_status, int http_status) {
  static const struct judged answered = {true, VOID_NONE}, fault = {false, VOID_NONE}, at_it = {false, VOID_REQUEST};
  static const struct judged late = {false, VOID_DEADLINE}, clients = {false, VOID_CLIENT};
  if (grpc_status >= 0) switch (grpc_status) {
      case 0: return answered;
      case 4: return late;
      case 14: case 15: return fault;
      case 2: case 13: return at_it;
      default: return clients;
    }
  if (http_status >= 200 && http_status < 300) return answered;
  switch (http_status) {
    case 504: return late;
    case 502: case 503: return fault;
    case 500: return at_it;
    default: return clients;
  }
}

/* As balancer/gateway/verdict.py and outcomes.py have it, with the response code details in place of the flags. */
void judge(struct ending *ending, struct text details, bool complete) {
  static const struct judged fault = {false, VOID_NONE}, late = {false, VOID_DEADLINE}, clients = {false, VOID_CLIENT};
  struct judged *found = &ending->judged;
  *found = by_status(ending->grpc_status, ending->http_status);
  if (!ending->endpoint[0] || begins(details, "downstream") || begins(details, "http2.remote") ||
      contains(details, "overflow") || begins(details, "overload"))
    *found = clients;
  else if (begins(details, "upstream_reset"))
    *found = fault;
  else if (contains(details, "timeout") || contains(details, "max_stream_duration") || begins(details, "duration_"))
    *found = late;
  else if (begins(details, "upstream_response"))
    *found = fault;
  else if (!complete)
    *found = clients;
}

static void tell(struct attached *attached, const struct ask *ask, const struct decision *decision,
                 const struct ending *ending) {
  struct outcome *told = outcome_place(attached->control);
  if (!told) return;
  struct text picked = {NULL, 0};
  if (decision) {
    const char *comma = memchr(decision->words, ',', decision->length);
    picked = (struct text){decision->words, comma ? (size_t)(comma - decision->words) : decision->length};
    told->number = decision->number;
    told->propensity = decision->propensity;
    told->column = (int32_t)decision->column;
  }
  told->at_s = attached->call.now_s;
  told->source = decision ? BY_POLICY : BY_LEAST_REQUEST;
  told->latency_s = ending->latency_s;
  told->first_byte_s = ending->first_byte_s;
  told->kind = (uint8_t)ask->kind;
  told->grpc = ask->grpc;
  told->http_status = (uint16_t)ending->http_status;
  told->grpc_status = (int16_t)ending->grpc_status;
  told->ok = ending->judged.ok;
  told->void_kind = ending->judged.void_kind;
  told->unserved = !ending->endpoint[0];
  memcpy(told->endpoint, ending->endpoint, sizeof told->endpoint);
  copy(told->picked, picked);
  told->retried = decision && !told->unserved && strcmp(told->endpoint, told->picked);
  outcome_done(attached->control);
}

/* As `Router._finished` and `Recorder._outcome` have it. */
static void learn(struct attached *attached, const struct ask *ask, const struct decision *decision,
                  const struct ending *ending) {
  const struct kernel *kernel = attached->kernel;
  const int64_t *none = attached->options[POLICY].words;
  struct balancer_call *call = &attached->call;
  int64_t picked = -1, guess = decision ? decision->row : -1;
  bool chosen = false;
  call->ok = ending->judged.ok;
  call->latency_s = ending->latency_s;
  call->model = 0;
  call->rows = 0;
  if (decision && decision->slot < SLOTS) {
    struct slot *slot = &attached->control->slots[decision->slot];
    if (slot->ticket == attached->ticket && slot->number == decision->number) {
      picked = slot->row;
      chosen = slot->chosen;
      call->model = slot->column;
      call->rows = slot->rows;
      slot_give(attached->control, decision->slot);
    }
  }
  if (picked >= (int64_t)attached->workers || (uint64_t)call->model >= attached->models) picked = -1, call->model = 0;
  call->picked = picked;
  bool nothing = ending->judged.void_kind == VOID_CLIENT || ending->judged.void_kind == VOID_DEADLINE || !ending->endpoint[0] ||
                 (ending->judged.void_kind == VOID_REQUEST && !chosen);
  call->served = nothing ? -1 : directory_row(attached->directory, (struct text){ending->endpoint, strlen(ending->endpoint)}, ask->grpc, guess);
  if (picked >= 0 && nothing)
    kernel->count_out(attached->of_books, none, attached->of_call);
  else if (picked >= 0)
    kernel->finish(attached->of_books, none, attached->of_call);
  else if (!nothing && call->served >= 0) {
    call->picked = call->served;
    kernel->learn_of_pick(attached->of_books, none, attached->of_call);
  }
}

bool finish(struct source *source, struct attached *attached, const struct ask *ask, const struct decision *decision,
            const struct ending *ending) {
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
  if (attached_refresh(source, attached)) learn(attached, ask, decision, ending);
  tell(attached, ask, decision, ending);
  balancer_state_unlock(control);
  return true;
}
