/* One request's decision and its end, by the kernel over the shared fleet_state. */
#ifndef MODULE_DECIDE_H
#define MODULE_DECIDE_H

#include "answer.h"
#include "attach.h"

#include <math.h>

enum { MOST_MESSAGE = 2048 };

/* For the lock: longer than whoever has it works, and shorter than what a client notices. */
#define WAIT_NS UINT64_C(2000000)

enum answer {
  BALANCER_DECIDES, /* it cannot be decided here: the balancer is to */
  LEAST_REQUEST,    /* no balancer can: Envoy's own choice, or the worker of the sequence, which has a name then */
  TAKEN,            /* a worker was picked and the request counted in */
  TURNED_AWAY
};

struct decision {
  enum answer answer;
  uint32_t slot;
  uint64_t number, directory, at_ns;
  double propensity, at_s;
  int64_t row, column;
  enum decider decider;
  unsigned side;   /* of the canary; SIDES: nobody compares it */
  bool sequence;
  bool among; /* the endpoints are not in order: Envoy chooses among them */
  bool owed; /* the number is the balancer's */
  bool reported; /* to guard or rollout, so that its end is reported too */
  bool left; /* its place was given back before its end */
  uint8_t draw;    /* enum drawn */
  double tokens_a_byte; /* of its model */
  uint32_t split; /* by which it gets a version; 0: none */
  char version[VERSION_BYTES]; /* that it gets; empty: what it says itself */
  char policy[64]; /* that picked, where Envoy's logs show it: whole or cut, and ended by zeros where there is room */
  /* Where a worker is named: the endpoints in order, separated by commas. Where turned away: the message. */
  char words[MOST_MESSAGE];
  size_t length;
  uint32_t http_status, grpc_status;
};

/* From `from_ns` on; not a number: there is no such moment. */
static inline double seconds_since(uint64_t from_ns, uint64_t to_ns) {
  return from_ns && to_ns >= from_ns ? seconds_of(to_ns - from_ns) : NAN;
}

void decide(struct source *source, struct attached *attached, const struct features *features, struct decision *out);

/* A request was refused for what stands in that field. */
void invalid(struct attached *attached, const struct features *features, uint32_t http_status, uint32_t grpc_status,
             struct text field);

struct judged {
  bool ok;
  enum void_kind void_kind;
};

/* How a request ended. */
struct ending {
  struct token_usage answered; /* tokens of its answer */
  double first_token_s, answering_s; /* not a number: not seen */
  double said_s;    /* when the last of its tokens came; 0: now */
  bool asked_again; /* more than one was asked, and what came belongs to all of them */
  char endpoint[ENDPOINT_BYTES]; /* of who served it; empty: nobody */
  int http_status;               /* 0: none */
  int grpc_status;               /* -1: none */
  double pick_s, decision_s, first_byte_s, latency_s; /* not a number: not measured */
  uint64_t bytes_in, bytes_out;
  unsigned attempts;
  struct judged judged;
  enum aborted aborted;
};

/* With the lock held: the slot of the decision; null: it was given up, or never had. */
static inline struct slot *slot_of(const struct attached *attached, const struct decision *decision) {
  if (decision->slot >= SLOTS) return NULL;
  struct slot *slot = &attached->control->slots[decision->slot];
  return slot->ticket == attached->ticket && slot->number == decision->number ? slot : NULL;
}

/* places.c. The worker is done with a request whose client does not take the answer: count it out before its end. */
void place_leave(struct source *source, struct attached *attached, struct decision *decision);
/* It waits for its client from now on: the balancer may count it out. */
void place_waits(struct attached *attached, struct decision *decision);
/* It does no longer, and is counted in again where it was counted out meanwhile. */
void place_resume(struct source *source, struct attached *attached, const struct features *features,
                  struct decision *decision);

/* Sets `judged` and `aborted`; `details`: Envoy's response code details; `complete`: the response was sent whole. */
void judge(struct ending *ending, struct text details, bool complete);

/* The first token of its answer came. */
void place_begins(struct source *source, struct attached *attached, struct decision *decision);
/* With the lock held: of a request that ends, or keeps its worker busy no more; what waits of its prompt no longer does.
   `answering_s`: since its first token, 0: not seen; `output_tokens`: 0: nothing is learned of them. */
void end_prompt(struct attached *attached, struct slot *slot, double answering_s, double output_tokens);

/* `decision`: null where Envoy chose. False: nothing could be counted now, and it is to be tried again. */
bool finish(struct source *source, struct attached *attached, const struct features *features,
            const struct decision *decision, const struct ending *ending);

#endif
