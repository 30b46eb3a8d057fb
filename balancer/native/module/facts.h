/* What the body of a request says, and how far a reader of it has come. */
#ifndef BALANCER_FACTS_H
#define BALANCER_FACTS_H

#include "text.h"

enum balancer_progress {
  BALANCER_MORE,   /* what routing needs may still come: hold what was read, and feed on */
  BALANCER_DONE,   /* nothing more is needed */
  BALANCER_REFUSED /* the request must not go on; `finish` says why */
};

/* A parameter's value in InferParameter: https://github.com/triton-inference-server/common, grpc_service.proto. */
enum balancer_parameter_kind {
  BALANCER_NO_PARAM = 0,
  BALANCER_BOOL_PARAM = 1,
  BALANCER_INT64_PARAM = 2,
  BALANCER_STRING_PARAM = 3,
  BALANCER_DOUBLE_PARAM = 4,
  BALANCER_UINT64_PARAM = 5
};

/* The value of a parameter that is a whole number, in decimal digits, as Python would write it; empty: none. */
struct balancer_digits {
  uint8_t length;
  char at[21];
};

struct balancer_facts {
  struct balancer_text model, version, id, sequence;
  struct balancer_digits priority, timeout;
  uint32_t parameters; /* how many */
  uint32_t rows;       /* the first dimension of the first input; 1: none that is a batch */
  bool has_rows;
  struct balancer_text key, value; /* of the parameter at hand */
  /* Of a body that must not go on: a label, and "FIELD: WORDS, which is refused", or the words alone. */
  const char *field, *words;
  bool words_alone;
  uint8_t flag; /* of a frame that is compressed; there are no words then */
};

#define BALANCER_DIGITS_OF(number) #number
#define BALANCER_DIGITS(number) BALANCER_DIGITS_OF(number)
#define BALANCER_MORE_THAN(number, what) "has more than " BALANCER_DIGITS(number) " " what

static inline enum balancer_progress balancer_refused(struct balancer_facts *facts, const char *field,
                                                      const char *words) {
  facts->field = field;
  facts->words = words;
  return BALANCER_REFUSED;
}

void balancer_dimension(struct balancer_facts *facts, int64_t dimension);
/* Take the decimal digits of a text; none where it is no whole number of 20 digits at most. */
void balancer_digits_take(struct balancer_digits *digits, const struct balancer_text *text);

#endif
