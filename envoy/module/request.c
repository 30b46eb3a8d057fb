#include "request.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

const struct balancer_names balancer_default_names = {BALANCER_HEADER_NAMES};

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
  facts->has_rows = facts->words_alone = facts->exhausted = false;
  facts->field = facts->words = NULL;
  facts->flag = 0;
  memset(&reader->features, 0, sizeof reader->features);
  reader->seen = reader->inflated = 0;
  reader->inflate = NULL;
  reader->limit = UINT64_MAX;
  reader->body = BALANCER_NO_BODY;
  reader->asks = BALANCER_ASKS_NOTHING;
}

/* How much of a REST inference is JSON, at most: all of it, or what the header says, read as Triton does, by atoi(); what is
   no number, or not above 0, means that none of it is. */
static uint64_t json_bytes(struct balancer_headers headers) {
  const struct text name = TEXT("inference-header-content-length");
  struct text text = {NULL, 0};
  uint64_t bytes;
  text.ptr = headers.get(headers.context, name.ptr, name.length, &text.length);
  if (!text.ptr) return BALANCER_MAX_JSON_BYTES;
  while (text.length && (*text.ptr == ' ' || (*text.ptr >= '\t' && *text.ptr <= '\r'))) text.ptr++, text.length--;
  if (text.length && *text.ptr == '+') text.ptr++, text.length--;
  digits_of(text, &bytes);
  return bytes < BALANCER_MAX_JSON_BYTES ? bytes : BALANCER_MAX_JSON_BYTES;
}

/* Takes what a compressed body is inflated in; false: it is refused for now. */
static bool start_inflating(struct balancer_reader *reader) {
  if ((reader->inflate = balancer_inflate_new())) return true;
  reader->facts.exhausted = reader->facts.words_alone = true;
  balancer_refused(&reader->facts, "message",
                   "too many compressed messages are being read; retry later, or send it uncompressed");
  return false;
}

static void start_json(struct balancer_reader *reader, struct balancer_headers headers) {
  struct text encoding = balancer_header(headers, TEXT("content-encoding"));
  bool compressed = equals(encoding, "gzip") || equals(encoding, "deflate");
  /* Another encoding is for Triton to read, or to refuse. */
  if (encoding.length && !compressed && !equals(encoding, "identity")) return;
  bool tensors = reader->asks == BALANCER_ASKS_TENSORS;
  reader->limit = tensors ? json_bytes(headers) : BALANCER_MAX_PROMPT_BYTES;
  if (!reader->limit) return;
  if (compressed && !start_inflating(reader)) {
    reader->progress = BALANCER_REFUSED;
    return;
  }
  reader->body = BALANCER_JSON_BODY;
  if (!tensors) balancer_prompt_start(&reader->prompt);
  balancer_json_start(&reader->of.json, reader->asks, &reader->prompt);
}

enum balancer_progress balancer_reader_start(struct balancer_reader *reader, struct balancer_headers headers,
                                             bool has_body) {
  struct text path = balancer_header(headers, TEXT(":path"));
  const char *query = path.length ? memchr(path.ptr, '?', path.length) : NULL;
  struct features *features = &reader->features;
  clear(reader);
  reader->progress = BALANCER_MORE;
  if (query) path.length = (size_t)(query - path.ptr);
  features->grpc = begins(balancer_header(headers, TEXT("content-type")), "application/grpc");
  if (features->grpc) {
    features->port = BALANCER_GRPC_PORT;
    features->kind = balancer_grpc_kind(path);
    if (has_body && features->kind < BALANCER_SERVER) {
      reader->body = BALANCER_GRPC_BODY;
      bool streams = features->kind == BALANCER_STREAM;
      if (streams) balancer_prompt_start(&reader->prompt);
      balancer_protobuf_start(&reader->of.protobuf, features->kind != BALANCER_MODEL, streams ? &reader->prompt : NULL);
    }
  } else {
    features->kind = balancer_rest_kind(path, &reader->facts.model, &reader->facts.version, &reader->asks);
    features->port = reader->asks == BALANCER_ASKS_OPENAI ? BALANCER_OPENAI_PORT : BALANCER_HTTP_PORT;
    if (has_body && reader->asks) start_json(reader, headers);
  }
  if (reader->progress != BALANCER_REFUSED)
    reader->progress = reader->body == BALANCER_NO_BODY ? BALANCER_DONE : BALANCER_MORE;
  return reader->progress;
}

/* Of the frame, or of the message as it was before it was compressed. */
static enum balancer_progress feed_message(struct balancer_reader *reader, const uint8_t *data, size_t length) {
  struct balancer_protobuf *protobuf = &reader->of.protobuf;
  enum balancer_progress progress = reader->progress;
  while (progress == BALANCER_MORE && length) {
    /* A prompt is one of the tensors. */
    uint64_t most = protobuf->tensors ? BALANCER_MAX_JSON_BYTES : BALANCER_MAX_PREFIX_BYTES;
    uint64_t room = BALANCER_FRAME_BYTES + most - reader->seen;
    size_t taken = length < room ? length : (size_t)room;
    if (!taken && !protobuf->tensors)
      return balancer_refused(&reader->facts, "message",
                              BALANCER_MORE_THAN(BALANCER_MAX_PREFIX_BYTES, "bytes before its tensors"));
    if (!taken) balancer_protobuf_without_prompt(protobuf);
    progress = balancer_protobuf_feed(protobuf, &reader->facts, data, taken);
    reader->seen += taken;
    data += taken;
    length -= taken;
  }
  return progress == BALANCER_DONE && length ? balancer_protobuf_feed(protobuf, &reader->facts, data, length) : progress;
}

static enum balancer_progress feed_json(struct balancer_reader *reader, const uint8_t *data, size_t length) {
  uint64_t room = reader->limit - reader->seen;
  size_t taken = length < room ? length : (size_t)room;
  enum balancer_progress progress = balancer_json_feed(&reader->of.json, &reader->facts, data, taken);
  reader->seen += taken;
  return progress == BALANCER_MORE && reader->seen == reader->limit ? BALANCER_DONE : progress;
}

/* Feeds what the bytes inflate to; stops where that is refused, or no more of it is wanted. */
static enum balancer_inflated feed_inflated(struct balancer_reader *reader, const uint8_t *data, size_t length) {
  bool grpc = reader->body == BALANCER_GRPC_BODY;
  const uint8_t *out;
  size_t count;
  enum balancer_inflated inflated;
  balancer_inflate_give(reader->inflate, data, length);
  do {
    inflated = balancer_inflate_take(reader->inflate, &out, &count);
    if (!count) break;
    uint64_t room = BALANCER_MAX_INFLATED_BYTES - reader->inflated;
    size_t taken = count < room ? count : (size_t)room;
    reader->progress = grpc ? feed_message(reader, out, taken) : feed_json(reader, out, taken);
    reader->inflated += taken;
    if (taken < count && reader->progress != BALANCER_REFUSED)
      reader->progress =
        balancer_refused(&reader->facts, "message", BALANCER_MORE_THAN(BALANCER_MAX_INFLATED_BYTES, "bytes inflated"));
  } while (grpc ? reader->progress != BALANCER_REFUSED : reader->progress == BALANCER_MORE);
  return inflated;
}

/* A message that is compressed: it has to be inflated to its end, as a name may come again behind the tensors. */
static enum balancer_progress feed_compressed(struct balancer_reader *reader, const uint8_t *data, size_t length) {
  struct balancer_protobuf *protobuf = &reader->of.protobuf;
  size_t taken = length < protobuf->packed ? length : (size_t)protobuf->packed;
  if (!reader->inflate && (protobuf->over || !start_inflating(reader)))
    return protobuf->over ? reader->progress : BALANCER_REFUSED;
  protobuf->packed -= taken;
  enum balancer_inflated inflated = feed_inflated(reader, data, taken);
  if (reader->progress == BALANCER_REFUSED) return reader->progress;
  if (inflated == BALANCER_NOT_DEFLATED || (!protobuf->packed && inflated != BALANCER_INFLATED))
    return balancer_refused(&reader->facts, "message", "is not compressed by gzip or deflate");
  if (protobuf->packed) return reader->progress;
  balancer_reader_release(reader);
  return balancer_protobuf_over(protobuf, &reader->facts);
}

static enum balancer_progress feed_grpc(struct balancer_reader *reader, const uint8_t *data, size_t length) {
  struct balancer_protobuf *protobuf = &reader->of.protobuf;
  size_t frame = BALANCER_FRAME_BYTES - protobuf->frame;
  if (frame > length) frame = length;
  if (frame) reader->progress = feed_message(reader, data, frame);
  if (reader->progress == BALANCER_REFUSED || protobuf->frame < BALANCER_FRAME_BYTES) return reader->progress;
  if (protobuf->compressed) return feed_compressed(reader, data + frame, length - frame);
  return frame < length ? feed_message(reader, data + frame, length - frame) : reader->progress;
}

static enum balancer_progress feed_compressed_json(struct balancer_reader *reader, const uint8_t *data, size_t length) {
  /* What is wrong with it is for Triton to say. */
  if (feed_inflated(reader, data, length) != BALANCER_INFLATES && reader->progress == BALANCER_MORE)
    return BALANCER_DONE;
  return reader->progress;
}

static enum balancer_progress feed(struct balancer_reader *reader, const uint8_t *data, size_t length) {
  if (reader->body == BALANCER_GRPC_BODY) return feed_grpc(reader, data, length);
  if (reader->progress != BALANCER_MORE) return reader->progress;
  return reader->inflate ? feed_compressed_json(reader, data, length) : feed_json(reader, data, length);
}

enum balancer_progress balancer_reader_feed(struct balancer_reader *reader, const void *data, size_t length) {
  if (!length || reader->progress == BALANCER_REFUSED) return reader->progress;
  reader->progress = feed(reader, data, length);
  bool json_is_read = reader->body == BALANCER_JSON_BODY && reader->progress == BALANCER_DONE;
  if (json_is_read || reader->progress == BALANCER_REFUSED) balancer_reader_release(reader);
  return reader->progress;
}

void balancer_reader_release(struct balancer_reader *reader) {
  balancer_inflate_free(reader->inflate);
  reader->inflate = NULL;
}

enum balancer_progress balancer_reader_end(struct balancer_reader *reader) {
  if (reader->progress != BALANCER_MORE) return reader->progress;
  reader->progress = reader->body == BALANCER_GRPC_BODY ? balancer_protobuf_end(&reader->of.protobuf, &reader->facts)
                                                        : BALANCER_DONE;
  if (reader->body == BALANCER_JSON_BODY || reader->progress == BALANCER_REFUSED) balancer_reader_release(reader);
  return reader->progress;
}

bool balancer_reader_has_more(const struct balancer_reader *reader) {
  return reader->body == BALANCER_GRPC_BODY && reader->of.protobuf.more;
}

bool balancer_reader_has_message(const struct balancer_reader *reader) {
  return reader->body == BALANCER_GRPC_BODY && balancer_protobuf_has_message(&reader->of.protobuf);
}

static bool refuse_body(const struct balancer_facts *facts, struct balancer_refusal *refusal) {
  refusal->exhausted = facts->exhausted;
  refusal->field = (struct text){facts->field, strlen(facts->field)};
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
  refusal->field = TEXT("parameters");
  snprintf(refusal->text, sizeof refusal->text, "parameters: %u is refused; it counts %d at most",
           (unsigned)facts->parameters, BALANCER_MAX_PARAMETERS);
  return false;
}

static bool find_model(struct balancer_reader *reader, const struct balancer_names *names,
                       struct balancer_headers headers, struct balancer_refusal *refusal) {
  struct balancer_text *model = &reader->facts.model;
  if (!model->bytes && reader->asks == BALANCER_ASKS_OPENAI)
    return balancer_refuse(refusal, TEXT("model"), model, "is the name of a model, as /v1/models lists it");
  if (!model->bytes && !balancer_header_text(headers, names->model, model, refusal)) return false;
  if (!balancer_text_within(model, TEXT("model"), refusal)) return false;
  return model->bytes || balancer_refuse(refusal, TEXT("model"), model,
                                         "is not empty; where the gateway does not tell it, a header has to");
}

/* The key that places a request: a sequence's before the header's. */
static bool find_key(struct balancer_reader *reader, const struct balancer_names *names, struct balancer_headers headers,
                     struct balancer_refusal *refusal) {
  struct features *features = &reader->features;
  struct balancer_text *sequence = &reader->facts.sequence, *key = &reader->facts.value;
  if (!balancer_text_within(sequence, TEXT("sequence_id"), refusal)) return false;
  if (!sequence->bytes && !balancer_header_text(headers, names->sequence, sequence, refusal)) return false;
  if (!balancer_header_text(headers, names->key, key, refusal)) return false;
  features->sequence = sequence->bytes && !balancer_text_is(sequence, "0");
  features->keyed = features->sequence || key->bytes;
  /* Sequences of different models are different. */
  if (features->sequence)
    features->key = balancer_mix(balancer_key_of(&reader->facts.model) ^ balancer_key_of(sequence));
  else if (features->keyed) features->key = balancer_key_of(key);
  return true;
}

/* Whichever is less important: the message's priority or the header's. */
static bool find_priority(struct balancer_reader *reader, const struct balancer_names *names,
                          struct balancer_headers headers, struct balancer_refusal *refusal) {
  uint64_t own;
  uint32_t of_header;
  if (!balancer_digits_within(&reader->facts.priority, "priority", BALANCER_MAX_PRIORITY, &own, refusal)) return false;
  if (!balancer_header_whole(headers, names->priority, 0, BALANCER_MAX_PRIORITY, &of_header, refusal)) return false;
  reader->features.priority = own > of_header ? (double)own : of_header;
  return true;
}

/* All that read_call looks at, in its order, so that the first refusal is the same. */
static bool find_all(struct balancer_reader *reader, const struct balancer_names *names, struct balancer_headers headers,
                     struct balancer_refusal *refusal) {
  struct balancer_facts *facts = &reader->facts;
  struct features *features = &reader->features;
  uint32_t rows;
  if (!parameters_within(facts, refusal)) return false;
  if (features->kind != BALANCER_SERVER && !find_model(reader, names, headers, refusal)) return false;
  if (!find_key(reader, names, headers, refusal)) return false;
  if (!balancer_text_within(&facts->version, TEXT("version"), refusal)) return false;
  if (!balancer_header_whole(headers, names->rows, 1, BALANCER_MAX_ROWS, &rows, refusal)) return false;
  features->rows = rows ? rows : facts->rows;
  return balancer_deadline(headers, names->deadline, &facts->timeout, &features->deadline_s, refusal) &&
         find_priority(reader, names, headers, refusal) &&
         balancer_header_text(headers, names->tenant, &reader->tenant, refusal) &&
         balancer_header_text(headers, TEXT(BALANCER_REQUEST_ID_HEADER), &reader->request_id, refusal) &&
         balancer_text_within(&facts->id, TEXT("id"), refusal);
}

const struct features *balancer_reader_finish(struct balancer_reader *reader, const struct balancer_names *names,
                                              struct balancer_headers headers, struct balancer_refusal *refusal) {
  struct balancer_facts *facts = &reader->facts;
  struct features *features = &reader->features;
  refusal->exhausted = false;
  bool json = reader->body == BALANCER_JSON_BODY, openai = json && reader->asks == BALANCER_ASKS_OPENAI;
  /* Behind what was read, it may name another model. */
  if (openai && reader->progress == BALANCER_DONE && !reader->of.json.whole) {
    bool too_long = reader->seen == reader->limit;
    reader->progress =
      balancer_refused(facts, "body", too_long ? BALANCER_MORE_THAN(BALANCER_MAX_PROMPT_BYTES, "bytes") : "is no JSON object");
  }
  if (reader->progress == BALANCER_REFUSED) return refuse_body(facts, refusal), NULL;
  features->deadline_s = INFINITY;
  features->compressed = reader->body == BALANCER_GRPC_BODY && reader->of.protobuf.compressed;
  features->rows = 1;
  if (features->kind == BALANCER_PER_SERVER) return features;
  /* Without a name, Triton answers for all of its models: then any server will do. */
  if (features->grpc && features->kind == BALANCER_MODEL && !facts->model.bytes) {
    features->kind = BALANCER_SERVER;
    balancer_text_clear(&facts->version);
  }
  if (!find_all(reader, names, headers, refusal)) return NULL;
  features->model = kept_of(&facts->model);
  features->version = kept_of(&facts->version);
  features->tenant = kept_of(&reader->tenant);
  features->request_id = kept_of(&reader->request_id);
  features->id = kept_of(&facts->id);
  if (openai && reader->prompt.streams) features->kind = BALANCER_STREAM;
  if (openai || (json && reader->asks == BALANCER_ASKS_GENERATE && reader->prompt.is_text)) {
    balancer_prompt_end(&reader->prompt, features->model, features->tenant);
    features->prompt = &reader->prompt;
    features->body_bytes = reader->of.json.bytes;
  }
  if (reader->body == BALANCER_GRPC_BODY && reader->of.protobuf.has_prompt && reader->prompt.bytes) {
    balancer_prompt_end(&reader->prompt, features->model, features->tenant);
    features->prompt = &reader->prompt;
    features->body_bytes = reader->prompt.bytes;
  }
  return features;
}
