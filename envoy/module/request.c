#include "request.h"

#include "headers.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

const struct balancer_names balancer_default_names = {BALANCER_HEADER_NAMES};

static struct balancer_span span_of(const struct balancer_text *text) {
  return (struct balancer_span){text->kept, text->bytes < sizeof text->kept ? text->bytes : sizeof text->kept};
}

void balancer_dimension(struct balancer_facts *facts, int64_t dimension) {
  if (facts->has_rows) return;
  facts->has_rows = true;
  /* One too large for a batch is the length of an input without a batch axis, and says nothing. */
  if (dimension >= 1 && dimension <= BALANCER_MAX_ROWS) facts->rows = (uint32_t)dimension;
}

static void clear(struct balancer_reader *reader) {
  struct balancer_facts *facts = &reader->facts;
  struct balancer_text *const texts[] = {&facts->model,  &facts->version,      &facts->id,          &facts->sequence,
                                         &facts->key,    &facts->value,        &reader->tenant,     &reader->request_id};
  for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) balancer_text_clear(texts[i]);
  facts->priority.length = facts->timeout.length = 0;
  facts->parameters = 0;
  facts->rows = 1;
  facts->has_rows = facts->words_alone = false;
  facts->field = facts->words = NULL;
  facts->flag = 0;
  memset(&reader->request, 0, sizeof reader->request);
  reader->seen = 0;
  reader->limit = UINT64_MAX;
  reader->body = BALANCER_NO_BODY;
}

/* How much of a REST inference is JSON, at most: all of it, or what the header says, read as Triton does, by atoi(); what is
   no number, or not above 0, means that none of it is. */
static uint64_t json_bytes(struct balancer_headers headers) {
  const struct balancer_span name = BALANCER_SPAN("inference-header-content-length");
  struct balancer_span text = {NULL, 0};
  uint64_t bytes = 0;
  text.at = headers.get(headers.context, name.at, name.length, &text.length);
  if (!text.at) return BALANCER_MAX_JSON_BYTES;
  while (text.length && (*text.at == ' ' || (*text.at >= '\t' && *text.at <= '\r'))) text.at++, text.length--;
  if (text.length && *text.at == '+') text.at++, text.length--;
  for (size_t i = 0; i < text.length && text.at[i] >= '0' && text.at[i] <= '9' && bytes < BALANCER_MAX_JSON_BYTES; i++)
    bytes = bytes * 10 + (uint64_t)(text.at[i] - '0');
  return bytes < BALANCER_MAX_JSON_BYTES ? bytes : BALANCER_MAX_JSON_BYTES;
}

static void start_json(struct balancer_reader *reader, struct balancer_headers headers) {
  struct balancer_span encoding = balancer_header(headers, BALANCER_SPAN("content-encoding"));
  /* Triton inflates, and nobody here. */
  if (encoding.length && !(encoding.length == 8 && balancer_span_begins(encoding, "identity"))) return;
  reader->limit = json_bytes(headers);
  if (!reader->limit) return;
  reader->body = BALANCER_JSON_BODY;
  balancer_json_start(&reader->of.json);
}

enum balancer_progress balancer_reader_start(struct balancer_reader *reader, struct balancer_headers headers,
                                             bool has_body) {
  struct balancer_span path = balancer_header(headers, BALANCER_SPAN(":path"));
  const char *query = path.length ? memchr(path.at, '?', path.length) : NULL;
  struct balancer_request *request = &reader->request;
  bool json = false;
  clear(reader);
  if (query) path.length = (size_t)(query - path.at);
  request->grpc = balancer_span_begins(balancer_header(headers, BALANCER_SPAN("content-type")), "application/grpc");
  if (request->grpc) {
    request->kind = balancer_grpc_kind(path);
    if (has_body && request->kind < BALANCER_SERVER) {
      reader->body = BALANCER_GRPC_BODY;
      balancer_protobuf_start(&reader->of.protobuf, request->kind != BALANCER_MODEL);
    }
  } else {
    request->kind = balancer_rest_kind(path, &reader->facts.model, &reader->facts.version, &json);
    if (has_body && json) start_json(reader, headers);
  }
  reader->progress = reader->body == BALANCER_NO_BODY ? BALANCER_DONE : BALANCER_MORE;
  return reader->progress;
}

static enum balancer_progress feed_grpc(struct balancer_reader *reader, const uint8_t *data, size_t length) {
  struct balancer_protobuf *protobuf = &reader->of.protobuf;
  enum balancer_progress progress = reader->progress;
  size_t taken = 0;
  if (progress == BALANCER_MORE) {
    uint64_t room = BALANCER_FRAME_BYTES + BALANCER_MAX_PREFIX_BYTES - reader->seen;
    taken = length < room ? length : (size_t)room;
    progress = balancer_protobuf_feed(protobuf, &reader->facts, data, taken);
    reader->seen += taken;
    if (progress == BALANCER_MORE && taken < length)
      return balancer_refused(&reader->facts, "message",
                              BALANCER_MORE_THAN(BALANCER_MAX_PREFIX_BYTES, "bytes before its tensors"));
  }
  if (progress == BALANCER_DONE && taken < length)
    progress = balancer_protobuf_feed(protobuf, &reader->facts, data + taken, length - taken);
  return progress;
}

static enum balancer_progress feed_json(struct balancer_reader *reader, const uint8_t *data, size_t length) {
  uint64_t room = reader->limit - reader->seen;
  size_t taken = length < room ? length : (size_t)room;
  enum balancer_progress progress = balancer_json_feed(&reader->of.json, &reader->facts, data, taken);
  reader->seen += taken;
  return progress == BALANCER_MORE && reader->seen == reader->limit ? BALANCER_DONE : progress;
}

enum balancer_progress balancer_reader_feed(struct balancer_reader *reader, const void *data, size_t length) {
  if (!length || reader->progress == BALANCER_REFUSED) return reader->progress;
  if (reader->body == BALANCER_GRPC_BODY) reader->progress = feed_grpc(reader, data, length);
  else if (reader->progress == BALANCER_MORE) reader->progress = feed_json(reader, data, length);
  return reader->progress;
}

enum balancer_progress balancer_reader_end(struct balancer_reader *reader) {
  if (reader->progress != BALANCER_MORE) return reader->progress;
  reader->progress = reader->body == BALANCER_GRPC_BODY ? balancer_protobuf_end(&reader->of.protobuf, &reader->facts)
                                                        : BALANCER_DONE;
  return reader->progress;
}

static bool refuse_body(const struct balancer_facts *facts, struct balancer_refusal *refusal) {
  refusal->field = (struct balancer_span){facts->field, strlen(facts->field)};
  if (!facts->words)
    snprintf(refusal->text, sizeof refusal->text, "Unsupported gRPC frame 'Compressed-Flag'%d", facts->flag);
  else if (facts->words_alone)
    snprintf(refusal->text, sizeof refusal->text, "%s", facts->words);
  else
    snprintf(refusal->text, sizeof refusal->text, "%s: %s, which is refused", facts->field, facts->words);
  return false;
}

static bool parameters_within(const struct balancer_facts *facts, struct balancer_refusal *refusal) {
  if (facts->parameters <= BALANCER_MAX_PARAMETERS) return true;
  refusal->field = BALANCER_SPAN("parameters");
  snprintf(refusal->text, sizeof refusal->text, "parameters: %u is refused; it counts %d at most",
           (unsigned)facts->parameters, BALANCER_MAX_PARAMETERS);
  return false;
}

static bool find_model(struct balancer_reader *reader, const struct balancer_names *names,
                       struct balancer_headers headers, struct balancer_refusal *refusal) {
  struct balancer_text *model = &reader->facts.model;
  if (!model->bytes && !balancer_header_text(headers, names->model, model, refusal)) return false;
  if (!balancer_text_within(model, BALANCER_SPAN("model"), refusal)) return false;
  return model->bytes || balancer_refuse(refusal, BALANCER_SPAN("model"), model,
                                         "is not empty; where the gateway does not tell it, a header has to");
}

/* The key that places a request: a sequence's before the header's. */
static bool find_key(struct balancer_reader *reader, const struct balancer_names *names, struct balancer_headers headers,
                     struct balancer_refusal *refusal) {
  struct balancer_request *request = &reader->request;
  struct balancer_text *sequence = &reader->facts.sequence, *key = &reader->facts.value;
  if (!balancer_text_within(sequence, BALANCER_SPAN("sequence_id"), refusal)) return false;
  if (!sequence->bytes && !balancer_header_text(headers, names->sequence, sequence, refusal)) return false;
  if (!balancer_header_text(headers, names->key, key, refusal)) return false;
  request->sequence = sequence->bytes && !balancer_text_is(sequence, "0");
  request->keyed = request->sequence || key->bytes;
  /* Sequences of different models are different. */
  if (request->sequence)
    request->key = balancer_mix(balancer_key_of(&reader->facts.model) ^ balancer_key_of(sequence));
  else if (request->keyed) request->key = balancer_key_of(key);
  return true;
}

/* Whichever is less important: the message's priority or the header's. */
static bool find_priority(struct balancer_reader *reader, const struct balancer_names *names,
                          struct balancer_headers headers, struct balancer_refusal *refusal) {
  uint64_t own;
  uint32_t of_header;
  if (!balancer_digits_within(&reader->facts.priority, "priority", BALANCER_MAX_PRIORITY, &own, refusal)) return false;
  if (!balancer_header_whole(headers, names->priority, 0, BALANCER_MAX_PRIORITY, &of_header, refusal)) return false;
  reader->request.priority = own > of_header ? (uint32_t)own : of_header;
  return true;
}

/* All that read_call looks at, in its order, so that the first refusal is the same. */
static bool find_all(struct balancer_reader *reader, const struct balancer_names *names, struct balancer_headers headers,
                     struct balancer_refusal *refusal) {
  struct balancer_facts *facts = &reader->facts;
  struct balancer_request *request = &reader->request;
  uint32_t rows;
  if (!parameters_within(facts, refusal)) return false;
  if (request->kind != BALANCER_SERVER && !find_model(reader, names, headers, refusal)) return false;
  if (!find_key(reader, names, headers, refusal)) return false;
  if (!balancer_text_within(&facts->version, BALANCER_SPAN("version"), refusal)) return false;
  if (!balancer_header_whole(headers, names->rows, 1, BALANCER_MAX_ROWS, &rows, refusal)) return false;
  request->rows = rows ? rows : facts->rows;
  return balancer_deadline(headers, names->deadline, &facts->timeout, &request->deadline_s, refusal) &&
         find_priority(reader, names, headers, refusal) &&
         balancer_header_text(headers, names->tenant, &reader->tenant, refusal) &&
         balancer_header_text(headers, BALANCER_SPAN(BALANCER_REQUEST_ID_HEADER), &reader->request_id, refusal) &&
         balancer_text_within(&facts->id, BALANCER_SPAN("id"), refusal);
}

const struct balancer_request *balancer_reader_finish(struct balancer_reader *reader,
                                                      const struct balancer_names *names,
                                                      struct balancer_headers headers,
                                                      struct balancer_refusal *refusal) {
  struct balancer_facts *facts = &reader->facts;
  struct balancer_request *request = &reader->request;
  if (reader->progress == BALANCER_REFUSED) return refuse_body(facts, refusal), NULL;
  request->deadline_s = INFINITY;
  request->rows = 1;
  if (request->kind == BALANCER_PER_SERVER) return request;
  /* Without a name, Triton answers for all of its models: then any server will do. */
  if (request->grpc && request->kind == BALANCER_MODEL && !facts->model.bytes) {
    request->kind = BALANCER_SERVER;
    balancer_text_clear(&facts->version);
  }
  if (!find_all(reader, names, headers, refusal)) return NULL;
  request->model = span_of(&facts->model);
  request->version = span_of(&facts->version);
  request->tenant = span_of(&reader->tenant);
  request->request_id = span_of(&reader->request_id);
  request->id = span_of(&facts->id);
  return request;
}
