/* One request's decision and its end, by the kernel over the shared books. */
#ifndef MODULE_DECIDE_H
#define MODULE_DECIDE_H

#include "attach.h"

#include <math.h>

enum { MOST_MESSAGE = 2048 };

/* What is asked for, within the bounds of balancer/core/bounds.py. */
struct ask {
  enum balancer_kind kind;
  bool grpc, keyed, sequence;
  struct text model, version, tenant, request_id, id;
  double rows, deadline_s, priority;
  uint64_t key;
  uint64_t came_ns, read_ns; /* when its headers came, and when all was there that decides */
};

enum answer {
  BALANCER_DECIDES, /* nothing can be said here: it is to be asked */
  LEAST_REQUEST,    /* nobody can be asked: Envoy's own choice, or the worker of the sequence, which has a name then */
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
  struct table *table; /* by which it is decided; null: by the policy itself */
  unsigned side;   /* of the trial; SIDES: nobody compares it */
  bool sequence;
  bool owed; /* the number is the balancer's */
  bool told; /* of the decision, so that its end is told of too */
  uint8_t lot;    /* enum drawn */
  uint32_t split; /* by which it gets a version; 0: none */
  char version[VERSION_BYTES]; /* that it gets */
  char policy[64]; /* that picked, where Envoy's logs tell it: whole or cut, and ended by zeros where there is room */
  /* Where a worker is named: the endpoints in order, separated by commas. Where turned away: the message. */
  char words[MOST_MESSAGE];
  size_t length;
  uint32_t http_status, grpc_status;
};

/* From `from_ns` on; not a number: there is no such moment. */
static inline double seconds_since(uint64_t from_ns, uint64_t to_ns) {
  return from_ns && to_ns >= from_ns ? seconds_of(to_ns - from_ns) : NAN;
}

void decide(struct source *source, struct attached *attached, const struct ask *ask, struct decision *out);

/* A request was refused for what stands in that field. */
void invalid(struct attached *attached, const struct ask *ask, uint32_t http_status, uint32_t grpc_status,
             struct text field);

struct judged {
  bool ok;
  enum void_kind void_kind;
};

/* How a request ended. */
struct ending {
  char endpoint[ENDPOINT_BYTES]; /* of who served it; empty: nobody */
  int http_status;               /* 0: none */
  int grpc_status;               /* -1: none */
  double pick_s, decision_s, first_byte_s, latency_s; /* not a number: not measured */
  uint64_t bytes_in, bytes_out;
  unsigned attempts;
  struct judged judged;
  enum aborted aborted;
};

/* Sets `judged` and `aborted`; `details`: Envoy's response code details; `complete`: the response was sent whole. */
void judge(struct ending *ending, struct text details, bool complete);

/* `decision`: null where Envoy chose. False: nothing could be counted now, and it is to be tried again. */
bool finish(struct source *source, struct attached *attached, const struct ask *ask, const struct decision *decision,
            const struct ending *ending);

#endif
