/* What a request asks for, read from its headers and the first bytes of its body, as balancer/extproc/kserve.py reads it
   from headers and from what Envoy extracted.

   A reader belongs to one request. Start it with the headers; where it asks for MORE, feed it the body as it comes, and
   tell it when the body ends; when it is DONE, finish it. All that it keeps is within it, but for what a compressed body is
   inflated in: release it at the end. */
#ifndef BALANCER_REQUEST_H
#define BALANCER_REQUEST_H

#include "inflate.h"
#include "text.h"

/* What the body of a request says, and how far a reader of it has come. */
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
  uint8_t flag; /* of a frame that is none of gRPC's; there are no words then */
  bool exhausted; /* refused for now: whoever tries again later may succeed */
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

/* What a request asks a language model. */
struct balancer_checkpoint {
  uint64_t hash, bytes; /* of what it begins with; 0 is no hash */
};

struct balancer_prompt {
  struct balancer_hash hash, salt, tools;
  uint64_t bytes;      /* as it is written in the body */
  uint32_t blocks;     /* that are hashed */
  uint32_t rest_bytes; /* behind them */
  uint32_t count;      /* of checkpoints */
  bool streams;        /* its answer comes piece by piece */
  bool is_text;        /* it is one, or begins with one */
  uint32_t max_tokens; /* most that the request allows its answer; 0: it sets no bound */
  bool named;          /* the body has named a model */
  uint8_t rest[BALANCER_BLOCK_BYTES];
  struct balancer_checkpoint checkpoints[BALANCER_MOST_CHECKPOINTS];
};

void balancer_prompt_start(struct balancer_prompt *prompt);
void balancer_prompt_add(struct balancer_prompt *prompt, const uint8_t *data, size_t length);
/* All of it has come: makes the hashes those of that model and tenant. */
void balancer_prompt_end(struct balancer_prompt *prompt, struct text model, struct text tenant);

/* Tokens until a checkpoint, of a prompt that has so many. */
static inline double balancer_beginning_tokens(const struct balancer_prompt *prompt, uint32_t checkpoint, double tokens) {
  return tokens * (double)prompt->checkpoints[checkpoint].bytes / (double)prompt->bytes;
}

/* The JSON of a REST inference, or of a request with a prompt, as its bytes arrive. */
struct balancer_json {
  struct balancer_text *text; /* that the string at hand goes to */
  struct balancer_prompt *prompt;
  uint64_t bytes;             /* that were read: up to the end of the outermost object */
  uint32_t skipped;           /* containers that are open within what is skipped */
  uint32_t point, high;       /* of an escape at hand; a surrogate that awaits the other */
  bool whole; /* the outermost object came to its end */
  uint8_t asks;
  uint8_t place, expected, token, member, digits;
  uint16_t seen, read; /* members, as bits: the first of a name counts, as Triton has it */
};

/* What its body asks for: nothing that is read, tensors, or a prompt's answer, as one of the two APIs has it. */
enum balancer_asks { BALANCER_ASKS_NOTHING, BALANCER_ASKS_TENSORS, BALANCER_ASKS_OPENAI, BALANCER_ASKS_GENERATE };

/* A `prompt` that was started: it is read into that. */
void balancer_json_start(struct balancer_json *reader, enum balancer_asks asks, struct balancer_prompt *prompt);
/* DONE also where the rest cannot be read: what is wrong with it is for Triton to say. */
enum balancer_progress balancer_json_feed(struct balancer_json *reader, struct balancer_facts *facts,
                                          const uint8_t *data, size_t length);

/* The first message of a gRPC body, in protobuf's wire format, as its bytes arrive. */
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
  bool tensors; /* they have begun */
  bool decided; /* nothing more is needed */
  bool more;    /* another message follows */
  bool compressed; /* it has to be inflated before it is fed */
  bool over;       /* a compressed one is */
  uint64_t packed; /* bytes to come of it as it is sent; a compressed one's */
  struct balancer_prompt *prompt;     /* that is looked for; NULL: none is */
  uint32_t inputs, contents;          /* that have begun */
  uint32_t prompt_at;                 /* the number of the input that has the prompt, from 1; 0: none so far */
  uint8_t matched, length_bytes;      /* of that input's name; of what stands before the prompt's text */
  bool in_name, in_prompt, has_prompt; /* the run is that name, or the prompt; all of it has come */
};

/* `inference`: the message is a ModelInferRequest, of which a `prompt` that was started is looked for; else one that names a
   model and a version. */
void balancer_protobuf_start(struct balancer_protobuf *reader, bool inference, struct balancer_prompt *prompt);
/* More has come than is held for a prompt: it goes without. */
void balancer_protobuf_without_prompt(struct balancer_protobuf *reader);
enum balancer_progress balancer_protobuf_feed(struct balancer_protobuf *reader, struct balancer_facts *facts,
                                              const uint8_t *data, size_t length);
/* A compressed message is over. */
enum balancer_progress balancer_protobuf_over(struct balancer_protobuf *reader, struct balancer_facts *facts);
/* Whether the message has come to its end. */
bool balancer_protobuf_has_message(const struct balancer_protobuf *reader);
/* The body is over. */
enum balancer_progress balancer_protobuf_end(const struct balancer_protobuf *reader, struct balancer_facts *facts);

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
  struct text model, rows, key, sequence, priority, tenant, deadline;
};

extern const struct balancer_names balancer_default_names;

/* What is asked for, within the bounds of balancer/bounds.py. Texts are in UTF-8; those that were read lie in the reader. */
struct features {
  enum balancer_kind kind;
  enum balancer_port port; /* of the workers that take it */
  bool grpc;       /* and so must be its answer */
  bool keyed;
  bool sequence;   /* the key is that of a sequence, all of which one worker must serve */
  bool compressed; /* its message, if it is gRPC's: no version can be written into it */
  bool waits;      /* more of it is to come */
  struct text model, version, tenant;
  struct text request_id; /* the header's */
  struct text id;         /* the message's */
  double rows, deadline_s, priority; /* without a deadline: INFINITY */
  uint64_t key;
  const struct balancer_prompt *prompt; /* NULL: it has none */
  uint64_t body_bytes;                  /* of which the prompt is a part */
  uint64_t came_ns, read_ns; /* when its headers came, and when all was there that decides */
};

enum { BALANCER_FIELD_SHOWN_BYTES = 256, BALANCER_REFUSAL_BYTES = BALANCER_SHOWN_BYTES + BALANCER_FIELD_SHOWN_BYTES + 128 };

/* As OutOfBoundsError in balancer/bounds.py: INVALID_ARGUMENT, 400. */
struct balancer_refusal {
  struct text field;        /* a label; lies in the names, or is constant */
  char text[BALANCER_REFUSAL_BYTES]; /* for people, ASCII, terminated */
  bool exhausted;                    /* RESOURCE_EXHAUSTED, 429 instead */
};

enum balancer_body { BALANCER_NO_BODY, BALANCER_GRPC_BODY, BALANCER_JSON_BODY };

struct balancer_reader {
  struct features features;
  enum balancer_body body; /* how it is read */
  enum balancer_progress progress;
  uint64_t seen, limit; /* bytes of the body: that were read; that are, at most */
  enum balancer_asks asks;
  struct balancer_inflate *inflate; /* NULL: nothing is inflated, or no more */
  uint64_t inflated;
  struct balancer_facts facts;
  struct balancer_text tenant, request_id;
  union {
    struct balancer_protobuf protobuf;
    struct balancer_json json;
  } of;
  struct balancer_prompt prompt;
};

/* Which call it is. `has_body`: false where the headers are all of it. MORE: its body has to be fed. */
enum balancer_progress balancer_reader_start(struct balancer_reader *reader, struct balancer_headers headers,
                                             bool has_body);

/* The next bytes of the body. Once it is DONE, the rest of a gRPC body may be fed too, and should be while it passes:
   REFUSED then says that a field which decides on routing came again behind the tensors. */
enum balancer_progress balancer_reader_feed(struct balancer_reader *reader, const void *data, size_t length);

/* The body is over; DONE or REFUSED. */
enum balancer_progress balancer_reader_end(struct balancer_reader *reader);

/* Gives back what was taken for a compressed body. It may be called again. */
void balancer_reader_release(struct balancer_reader *reader);
/* Whether a gRPC body's first message has come to its end. */
bool balancer_reader_has_message(const struct balancer_reader *reader);

/* Whether a gRPC body has a second one. */
bool balancer_reader_has_more(const struct balancer_reader *reader);

/* The request, which lies in the reader; NULL: it is refused. Only the path has a say where the kind is PER_SERVER. */
const struct features *balancer_reader_finish(struct balancer_reader *reader, const struct balancer_names *names,
                                              struct balancer_headers headers, struct balancer_refusal *refusal);

/* Paths and headers: headers.c. */

struct text balancer_header(struct balancer_headers headers, struct text name);

/* Which call a path is; of REST, its model and version, and what its JSON asks for. */
enum balancer_kind balancer_grpc_kind(struct text path);
enum balancer_kind balancer_rest_kind(struct text path, struct balancer_text *model,
                                      struct balancer_text *version, enum balancer_asks *asks);

/* Each is true where the value is within bounds, or there is none; else the refusal says why. */
bool balancer_text_within(const struct balancer_text *text, struct text field, struct balancer_refusal *refusal);
bool balancer_header_text(struct balancer_headers headers, struct text name, struct balancer_text *text,
                          struct balancer_refusal *refusal);
/* 0 where there is none. */
bool balancer_header_whole(struct balancer_headers headers, struct text name, uint32_t least, uint32_t most,
                           uint32_t *value, struct balancer_refusal *refusal);
bool balancer_digits_within(const struct balancer_digits *digits, const char *field, uint64_t most, uint64_t *value,
                            struct balancer_refusal *refusal);
/* The tightest of gRPC's timeout, Triton's, and the header's. */
bool balancer_deadline(struct balancer_headers headers, struct text name, const struct balancer_digits *timeout,
                       double *deadline_s, struct balancer_refusal *refusal);

/* False, with "FIELD: VALUE is refused; it RULE". */
bool balancer_refuse(struct balancer_refusal *refusal, struct text field, const struct balancer_text *value,
                     const char *rule);

#endif
