/* The JSON of a REST inference, as its bytes arrive. */
#ifndef BALANCER_JSON_H
#define BALANCER_JSON_H

#include "facts.h"

struct balancer_json {
  struct balancer_text *text; /* that the string at hand goes to */
  uint32_t skipped;           /* containers that are open within what is skipped */
  uint32_t point, high;       /* of an escape at hand; a surrogate that awaits the other */
  uint8_t place, expected, token, member, digits;
  uint16_t seen, read; /* members, as bits: the first of a name counts, as Triton has it */
};

void balancer_json_start(struct balancer_json *reader);
/* DONE also where the rest cannot be read: what is wrong with it is for Triton to say. */
enum balancer_progress balancer_json_feed(struct balancer_json *reader, struct balancer_facts *facts,
                                          const uint8_t *data, size_t length);

#endif
