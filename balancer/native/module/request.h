/* What a request asks for, read from its headers and the first bytes of its body, as balancer/gateway/kserve.py reads it
   from headers and from what Envoy extracted.

   A reader belongs to one request. Start it with the headers; where it asks for MORE, feed it the body as it comes, and
   tell it when the body ends; when it is DONE, finish it. All that it keeps is within it: it takes no memory besides. */
#ifndef BALANCER_REQUEST_H
#define BALANCER_REQUEST_H

#include "json.h"
#include "protobuf.h"

/* The value of a header by its name in lower case, the last where it is repeated; NULL: there is none. The value must
   stay until the function that asked returns. */
typedef const char *balancer_get(void *context, const char *name, size_t name_length, size_t *value_length);

struct balancer_headers {
  balancer_get *get;
  void *context;
};

#define BALANCER_GRPC_TIMEOUT "grpc-timeout"

/* The headers that may carry what cannot be had without the body, as `HeaderNames` in kserve.py; NULL: none may. */
struct balancer_names {
  struct balancer_span model, rows, key, sequence, priority, tenant, deadline;
};

extern const struct balancer_names balancer_default_names;

struct balancer_request {
  enum balancer_kind kind;
  bool grpc;     /* and so must be its answer */
  bool sequence; /* the key is that of a sequence, all of which one worker must serve */
  bool keyed;
  uint64_t key;
  double deadline_s; /* INFINITY: none */
  uint32_t rows, priority;
  /* In UTF-8 and not terminated, of 0 to BALANCER_MAX_TEXT_BYTES; they lie in the reader. */
  struct balancer_span model, version, tenant;
  struct balancer_span request_id; /* the header's */
  struct balancer_span id;         /* the message's */
};

enum { BALANCER_FIELD_SHOWN_BYTES = 256, BALANCER_REFUSAL_BYTES = BALANCER_SHOWN_BYTES + BALANCER_FIELD_SHOWN_BYTES + 128 };

/* As OutOfBoundsError in balancer/core/bounds.py: INVALID_ARGUMENT, 400. */
struct balancer_refusal {
  struct balancer_span field;        /* a label; lies in the names, or is constant */
  char text[BALANCER_REFUSAL_BYTES]; /* for people, ASCII, terminated */
};

enum balancer_body { BALANCER_NO_BODY, BALANCER_GRPC_BODY, BALANCER_JSON_BODY };

struct balancer_reader {
  struct balancer_request request;
  enum balancer_body body; /* how it is read */
  enum balancer_progress progress;
  uint64_t seen, limit; /* bytes of the body: that were read; that are, at most */
  struct balancer_facts facts;
  struct balancer_text tenant, request_id;
  union {
    struct balancer_protobuf protobuf;
    struct balancer_json json;
  } of;
};

/* Which call it is. `has_body`: false where the headers are all of it. MORE: its body has to be fed. */
enum balancer_progress balancer_reader_start(struct balancer_reader *reader, struct balancer_headers headers,
                                             bool has_body);

/* The next bytes of the body. Once it is DONE, the rest of a gRPC body may be fed too, and should be while it passes:
   REFUSED then says that a field which decides on routing came again behind the tensors. */
enum balancer_progress balancer_reader_feed(struct balancer_reader *reader, const void *data, size_t length);

/* The body is over; DONE or REFUSED. */
enum balancer_progress balancer_reader_end(struct balancer_reader *reader);

/* The request, which lies in the reader; NULL: it is refused. Only the path has a say where the kind is PER_SERVER. */
const struct balancer_request *balancer_reader_finish(struct balancer_reader *reader,
                                                      const struct balancer_names *names,
                                                      struct balancer_headers headers,
                                                      struct balancer_refusal *refusal);

#endif
