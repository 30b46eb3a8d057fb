/* The first message of a gRPC body, in protobuf's wire format, as its bytes arrive. */
#ifndef BALANCER_PROTOBUF_H
#define BALANCER_PROTOBUF_H

#include "facts.h"

enum { BALANCER_PROTOBUF_DEPTH = 4, BALANCER_FRAME_BYTES = 5 };

struct balancer_protobuf {
  uint64_t number;                         /* the varint at hand, and how far it has come */
  uint64_t left[BALANCER_PROTOBUF_DEPTH];  /* bytes to come of each message that is open, those of the inner ones not counted */
  uint64_t run;                            /* bytes to come that are skipped, or a text */
  uint32_t field;                          /* the one at hand */
  struct balancer_text *text;              /* that the run belongs to, and how it is called */
  const char *name;
  uint8_t in[BALANCER_PROTOBUF_DEPTH];     /* which message */
  uint8_t depth, state, shift;
  uint8_t frame; /* bytes of the frame's header that have come */
  uint8_t kind;  /* of the parameter at hand */
  uint16_t dimensions;
  bool decided; /* the tensors have begun */
};

/* `inference`: the message is a ModelInferRequest; else one that names a model and a version. */
void balancer_protobuf_start(struct balancer_protobuf *reader, bool inference);
enum balancer_progress balancer_protobuf_feed(struct balancer_protobuf *reader, struct balancer_facts *facts,
                                              const uint8_t *data, size_t length);
/* The body is over. */
enum balancer_progress balancer_protobuf_end(const struct balancer_protobuf *reader, struct balancer_facts *facts);

#endif
