/* A machine of states over bytes. It holds nothing of the message but the texts that it keeps, and skips by length. */
#include "request.h"

#include <string.h>

enum state { FRAME, TAG, NUMBER, LENGTH, SHAPE, RUN, OVER };
enum message { NAMED, INFERENCE, PARAMETER, VALUE, INPUT, DIMENSIONS };
enum wire { WIRE_NUMBER = 0, WIRE_8_BYTES = 1, WIRE_LENGTH = 2, WIRE_4_BYTES = 5 };

/* Numbers of fields in Triton's grpc_service.proto. */
enum { NAMED_NAME = 1, NAMED_VERSION = 2 };
enum { INFER_MODEL = 1, INFER_VERSION, INFER_ID, INFER_PARAMETERS, INFER_INPUTS, INFER_OUTPUTS, INFER_CONTENTS };
enum { PARAMETER_KEY = 1, PARAMETER_VALUE = 2 };
enum { INPUT_NAME = 1, INPUT_SHAPE = 3, INPUT_CONTENTS = 5 };
/* Before each element of a text tensor: its length. */
enum { ELEMENT_LENGTH_BYTES = 4 };
static const char PROMPT_INPUT[] = BALANCER_TRITON_PROMPT;

/* What a text stands for in refusals. */
static const char *const KEY = "parameters.key", *const STRING = "parameters.value.string_param";

void balancer_protobuf_start(struct balancer_protobuf *reader, bool inference, struct balancer_prompt *prompt) {
  memset(reader, 0, sizeof *reader);
  reader->prompt = prompt;
  reader->in[0] = inference ? INFERENCE : NAMED;
  reader->state = FRAME;
}

static enum balancer_progress malformed(struct balancer_facts *facts) {
  return balancer_refused(facts, "message", "is not one of protobuf");
}

static enum message in(const struct balancer_protobuf *reader) { return (enum message)reader->in[reader->depth]; }

static void await(struct balancer_protobuf *reader, enum state state) {
  reader->state = (uint8_t)state;
  reader->number = 0;
  reader->shift = 0;
}

static enum balancer_progress frame(struct balancer_protobuf *reader, struct balancer_facts *facts, uint8_t byte) {
  if (reader->frame++) {
    reader->left[0] = reader->left[0] << 8 | byte;
  } else if (byte > 1) {
    facts->flag = byte;
    return balancer_refused(facts, "message", NULL);
  } else {
    reader->compressed = byte;
  }
  if (reader->frame < BALANCER_FRAME_BYTES) return BALANCER_MORE;
  if (reader->compressed) {
    /* How long the message is, nobody says. */
    reader->packed = reader->left[0];
    reader->left[0] = UINT64_MAX;
  }
  await(reader, TAG);
  return BALANCER_MORE;
}

/* One byte of a varint; DONE: its last. Ten at most, of which bits beyond the 64th are dropped, as protobuf does. */
static enum balancer_progress varint(struct balancer_protobuf *reader, struct balancer_facts *facts, uint8_t byte) {
  if (!reader->left[reader->depth]) return malformed(facts);
  reader->left[reader->depth]--;
  reader->number |= (uint64_t)(byte & 0x7F) << reader->shift;
  if (!(byte & 0x80)) return BALANCER_DONE;
  reader->shift += 7;
  return reader->shift > 63 ? malformed(facts) : BALANCER_MORE;
}

/* So many bytes of the message at hand follow: of a text, of a message within, or of no interest. */
static enum balancer_progress follow(struct balancer_protobuf *reader, struct balancer_facts *facts, uint64_t bytes) {
  if (bytes > reader->left[reader->depth]) return malformed(facts);
  reader->left[reader->depth] -= bytes;
  reader->run = bytes;
  reader->text = NULL;
  reader->in_name = reader->in_prompt = false;
  reader->state = RUN;
  return BALANCER_MORE;
}

static enum balancer_progress enter(struct balancer_protobuf *reader, enum message message) {
  reader->left[++reader->depth] = reader->run;
  reader->in[reader->depth] = (uint8_t)message;
  await(reader, message == DIMENSIONS ? SHAPE : TAG);
  return BALANCER_MORE;
}

static enum balancer_progress read_text(struct balancer_protobuf *reader, struct balancer_facts *facts,
                                        struct balancer_text *text, const char *name) {
  if (reader->run > BALANCER_MAX_FIELD_BYTES)
    return balancer_refused(facts, name, BALANCER_MORE_THAN(BALANCER_MAX_FIELD_BYTES, "bytes"));
  balancer_text_clear(text);
  reader->text = text;
  reader->name = name;
  return BALANCER_MORE;
}

static enum balancer_progress begin_parameter(struct balancer_protobuf *reader, struct balancer_facts *facts) {
  if (facts->parameters++ == BALANCER_MAX_FIELD_VALUES)
    return balancer_refused(facts, KEY, BALANCER_MORE_THAN(BALANCER_MAX_FIELD_VALUES, "values"));
  balancer_text_clear(&facts->key);
  balancer_text_clear(&facts->value);
  reader->kind = BALANCER_NO_PARAM;
  return enter(reader, PARAMETER);
}

/* A parameter is whole: the last of a key counts, if its value is of a kind that Triton takes. */
static void end_parameter(struct balancer_protobuf *reader, struct balancer_facts *facts) {
  unsigned kind = 1U << reader->kind;
  if (balancer_text_is(&facts->key, "sequence_id")) {
    if (kind & BALANCER_KINDS_OF_SEQUENCE_ID) balancer_text_copy(&facts->sequence, &facts->value);
    else balancer_text_clear(&facts->sequence);
  } else if (balancer_text_is(&facts->key, "priority")) {
    facts->priority.length = 0;
    if (kind & BALANCER_KINDS_OF_PRIORITY) balancer_digits_take(&facts->priority, &facts->value);
  } else if (balancer_text_is(&facts->key, "timeout")) {
    facts->timeout.length = 0;
    if (kind & BALANCER_KINDS_OF_TIMEOUT) balancer_digits_take(&facts->timeout, &facts->value);
  }
}

static void parameter_number(struct balancer_protobuf *reader, struct balancer_facts *facts) {
  uint64_t value = reader->number;
  bool negative = reader->field == BALANCER_INT64_PARAM && value >> 63;
  char digits[21];
  size_t at = sizeof digits;
  reader->kind = (uint8_t)reader->field;
  balancer_text_clear(&facts->value);
  if (negative) value = 0 - value;
  do digits[--at] = (char)('0' + value % 10);
  while (value /= 10);
  if (negative) digits[--at] = '-';
  balancer_text_add(&facts->value, digits + at, sizeof digits - at);
}

static enum balancer_progress dimension(struct balancer_protobuf *reader, struct balancer_facts *facts) {
  if (reader->tensors) return BALANCER_MORE;
  if (reader->dimensions++ == BALANCER_MAX_FIELD_VALUES)
    return balancer_refused(facts, "inputs.shape", BALANCER_MORE_THAN(BALANCER_MAX_FIELD_VALUES, "values"));
  balancer_dimension(facts, (int64_t)reader->number);
  return BALANCER_MORE;
}

void balancer_protobuf_without_prompt(struct balancer_protobuf *reader) {
  reader->prompt = NULL;
  reader->in_prompt = false;
  reader->decided = true;
}

/* All that stands before them is known. */
static enum balancer_progress begin_tensors(struct balancer_protobuf *reader) {
  reader->tensors = true;
  if (!reader->prompt || !reader->prompt_at) reader->decided = true;
  return BALANCER_MORE;
}

static enum balancer_progress begin_contents(struct balancer_protobuf *reader) {
  begin_tensors(reader);
  reader->in_prompt = !reader->decided && ++reader->contents == reader->prompt_at;
  reader->length_bytes = 0;
  return BALANCER_MORE;
}

/* The name of an input: of two that have the prompt's, it is the first. */
static void end_name(struct balancer_protobuf *reader) {
  bool is_prompt = reader->matched == sizeof PROMPT_INPUT - 1 && reader->inputs <= BALANCER_MAX_PROMPT_INPUTS;
  if (is_prompt && !reader->prompt_at) reader->prompt_at = reader->inputs;
  if (!is_prompt && reader->prompt_at == reader->inputs) reader->prompt_at = 0;
}

static void add_to_name(struct balancer_protobuf *reader, const uint8_t *data, size_t length) {
  enum { OTHER = sizeof PROMPT_INPUT };
  for (size_t i = 0; i < length; i++)
    reader->matched = reader->matched < OTHER - 1 && data[i] == (uint8_t)PROMPT_INPUT[reader->matched]
                        ? reader->matched + 1
                        : OTHER;
}

static void add_to_prompt(struct balancer_protobuf *reader, const uint8_t *data, size_t length) {
  size_t skipped = ELEMENT_LENGTH_BYTES - reader->length_bytes;
  if (skipped > length) skipped = length;
  reader->length_bytes += (uint8_t)skipped;
  balancer_prompt_add(reader->prompt, data + skipped, length - skipped);
}

/* What begins within an inference by its length. What concerns routing stands before the tensors: a worker that was
   chosen by one model must not be sent another one's request. */
static enum balancer_progress inference(struct balancer_protobuf *reader, struct balancer_facts *facts) {
  static const char *const names[] = {NULL, "model_name", "model_version", "id", "parameters"};
  struct balancer_text *const texts[] = {NULL, &facts->model, &facts->version, &facts->id};
  if (reader->tensors && reader->field <= INFER_PARAMETERS)
    return balancer_refused(facts, names[reader->field], "comes after the tensors");
  switch (reader->field) {
    case INFER_MODEL:
    case INFER_VERSION:
    case INFER_ID: return read_text(reader, facts, texts[reader->field], names[reader->field]);
    case INFER_PARAMETERS: return begin_parameter(reader, facts);
    case INFER_INPUTS: return reader->tensors ? BALANCER_MORE : (reader->inputs++, enter(reader, INPUT));
    case INFER_OUTPUTS: return begin_tensors(reader);
    case INFER_CONTENTS: return begin_contents(reader);
    default: return BALANCER_MORE;
  }
}

/* A field's length is known: it is read, or skipped. */
static enum balancer_progress begin(struct balancer_protobuf *reader, struct balancer_facts *facts) {
  enum balancer_progress progress = follow(reader, facts, reader->number);
  if (progress != BALANCER_MORE) return progress;
  switch (in(reader)) {
    case INFERENCE: return inference(reader, facts);
    case NAMED:
      if (reader->field == NAMED_NAME) return read_text(reader, facts, &facts->model, "name");
      if (reader->field == NAMED_VERSION) return read_text(reader, facts, &facts->version, "version");
      break;
    case PARAMETER:
      if (reader->field == PARAMETER_KEY) return read_text(reader, facts, &facts->key, KEY);
      if (reader->field == PARAMETER_VALUE) return enter(reader, VALUE);
      break;
    case VALUE:
      if (reader->field != BALANCER_STRING_PARAM) break;
      reader->kind = BALANCER_STRING_PARAM;
      return read_text(reader, facts, &facts->value, STRING);
    case INPUT:
      if (reader->field == INPUT_SHAPE) return enter(reader, DIMENSIONS);
      if (reader->field == INPUT_NAME) reader->in_name = true, reader->matched = 0;
      /* A client that writes elements one by one. */
      if (reader->field == INPUT_CONTENTS && reader->inputs <= BALANCER_MAX_PROMPT_INPUTS) reader->prompt = NULL;
      if (reader->field == INPUT_CONTENTS && facts->has_rows) begin_tensors(reader);
      break;
    case DIMENSIONS: break;
  }
  return BALANCER_MORE;
}

static enum balancer_progress number(struct balancer_protobuf *reader, struct balancer_facts *facts) {
  bool known = reader->field == BALANCER_BOOL_PARAM || reader->field == BALANCER_INT64_PARAM ||
               reader->field == BALANCER_UINT64_PARAM;
  enum balancer_progress progress = BALANCER_MORE;
  if (in(reader) == VALUE && known) parameter_number(reader, facts);
  if (in(reader) == INPUT && reader->field == INPUT_SHAPE) progress = dimension(reader, facts);
  await(reader, TAG);
  return progress;
}

static enum balancer_progress tag(struct balancer_protobuf *reader, struct balancer_facts *facts) {
  uint64_t wire = reader->number & 7, field = reader->number >> 3;
  if (!field || reader->number > UINT32_MAX) return malformed(facts);
  reader->field = (uint32_t)field;
  switch (wire) {
    case WIRE_NUMBER: await(reader, NUMBER); return BALANCER_MORE;
    case WIRE_LENGTH: await(reader, LENGTH); return BALANCER_MORE;
    case WIRE_8_BYTES:
      if (in(reader) == VALUE && field == BALANCER_DOUBLE_PARAM) reader->kind = BALANCER_DOUBLE_PARAM;
      return follow(reader, facts, 8);
    case WIRE_4_BYTES: return follow(reader, facts, 4);
    default: return malformed(facts); /* groups, which nobody sends */
  }
}

static enum balancer_progress byte_of(struct balancer_protobuf *reader, struct balancer_facts *facts, uint8_t byte) {
  enum balancer_progress progress;
  if (reader->state == FRAME) return frame(reader, facts, byte);
  progress = varint(reader, facts, byte);
  if (progress != BALANCER_DONE) return progress;
  if (reader->state == TAG) return tag(reader, facts);
  if (reader->state == LENGTH) return begin(reader, facts);
  if (reader->state == NUMBER) return number(reader, facts);
  progress = dimension(reader, facts);
  await(reader, SHAPE);
  return progress;
}

/* A run is over: what it was is whole. */
static enum balancer_progress settle(struct balancer_protobuf *reader, struct balancer_facts *facts) {
  if (reader->text && !balancer_text_valid(reader->text)) return balancer_refused(facts, reader->name, "is not UTF-8");
  if (reader->in_name) end_name(reader);
  if (reader->in_prompt) reader->decided = reader->has_prompt = true;
  await(reader, TAG);
  return BALANCER_MORE;
}

/* Between two fields: messages that are over are left. */
static void leave(struct balancer_protobuf *reader, struct balancer_facts *facts) {
  while (!reader->left[reader->depth]) {
    if (!reader->depth) {
      reader->state = OVER;
      return;
    }
    if (in(reader) == PARAMETER) end_parameter(reader, facts);
    reader->depth--;
    await(reader, TAG);
  }
}

enum balancer_progress balancer_protobuf_feed(struct balancer_protobuf *reader, struct balancer_facts *facts,
                                              const uint8_t *data, size_t length) {
  enum balancer_progress progress = BALANCER_MORE;
  for (size_t at = 0; progress == BALANCER_MORE;) {
    if (reader->state == RUN) {
      size_t taken = reader->run < length - at ? (size_t)reader->run : length - at;
      if (reader->text) balancer_text_add(reader->text, data + at, taken);
      if (reader->in_name) add_to_name(reader, data + at, taken);
      if (reader->in_prompt) add_to_prompt(reader, data + at, taken);
      reader->run -= taken;
      at += taken;
      if (reader->run) break;
      progress = settle(reader, facts);
    }
    if (progress == BALANCER_MORE && !reader->shift && (reader->state == TAG || reader->state == SHAPE))
      leave(reader, facts);
    reader->more = reader->more || (reader->state == OVER && at < length);
    if (progress != BALANCER_MORE || reader->state == OVER || at == length) break;
    progress = byte_of(reader, facts, data[at++]);
  }
  if (progress == BALANCER_REFUSED) return progress;
  return reader->decided || reader->state == OVER ? BALANCER_DONE : BALANCER_MORE;
}

enum balancer_progress balancer_protobuf_over(struct balancer_protobuf *reader, struct balancer_facts *facts) {
  if (reader->depth || reader->state != TAG || reader->shift) return malformed(facts);
  reader->state = OVER;
  reader->over = true;
  return BALANCER_DONE;
}

enum balancer_progress balancer_protobuf_end(const struct balancer_protobuf *reader, struct balancer_facts *facts) {
  if (reader->decided || reader->state == OVER) return BALANCER_DONE;
  facts->words_alone = true;
  return balancer_refused(facts, "message",
                          reader->frame ? "Did not receive enough data for gRPC message parsing."
                                        : "did not receive enough data to form a message.");
}

bool balancer_protobuf_has_message(const struct balancer_protobuf *reader) { return reader->state == OVER; }
