/* A machine of states over bytes, without a stack: it knows five places where something concerns routing, and elsewhere
   counts brackets. So nothing can nest too deeply for it, and what it does not need it neither keeps nor checks. */
#include "request.h"

#include <string.h>

enum place { START, TOP, PARAMETERS, INPUTS, INPUT, SHAPE, OPENAI, GENERATE, OVER };
enum expected { A_VALUE, A_KEY, A_COLON, A_COMMA };
enum token { NONE, STRING, ESCAPE, UNICODE, SCALAR, SKIP, SKIP_STRING, SKIP_ESCAPE };
enum member {
  OTHER,
  THE_ID,
  THE_PARAMETERS,
  THE_INPUTS,
  THE_SEQUENCE,
  THE_PRIORITY,
  THE_TIMEOUT,
  THE_SHAPE,
  THE_MODEL,
  THE_PROMPT,
  THE_SALT,
  THE_TOOLS,
  THE_STREAM,
  THE_MOST
};

static const struct {
  enum place place;
  const char *name;
  enum member member;
} MEMBERS[] = {
  {TOP, "id", THE_ID},
  {TOP, "parameters", THE_PARAMETERS},
  {TOP, "inputs", THE_INPUTS},
  {PARAMETERS, "sequence_id", THE_SEQUENCE},
  {PARAMETERS, "priority", THE_PRIORITY},
  {PARAMETERS, "timeout", THE_TIMEOUT},
  {INPUT, "shape", THE_SHAPE},
  {OPENAI, "model", THE_MODEL},
  {OPENAI, "messages", THE_PROMPT},
  {OPENAI, "prompt", THE_PROMPT},
  {OPENAI, "cache_salt", THE_SALT},
  {OPENAI, "tools", THE_TOOLS},
  {OPENAI, "stream", THE_STREAM},
  {OPENAI, "max_tokens", THE_MOST},
  {OPENAI, "max_completion_tokens", THE_MOST},
  {GENERATE, BALANCER_TRITON_PROMPT, THE_PROMPT},
  {GENERATE, "max_tokens", THE_MOST},
  {GENERATE, "max_completion_tokens", THE_MOST},
};

void balancer_json_start(struct balancer_json *reader, enum balancer_asks asks, struct balancer_prompt *prompt) {
  memset(reader, 0, sizeof *reader);
  reader->asks = (uint8_t)asks;
  reader->prompt = prompt;
}

/* Where the outermost object begins. */
static enum place first_of(const struct balancer_json *reader) {
  return reader->asks == BALANCER_ASKS_OPENAI ? OPENAI : reader->asks == BALANCER_ASKS_GENERATE ? GENERATE : TOP;
}

static bool of_prompt(const struct balancer_json *reader) { return reader->place == OPENAI || reader->place == GENERATE; }

static bool is(const struct balancer_json *reader, enum place place, enum member member) {
  return reader->place == (uint8_t)place && reader->member == (uint8_t)member;
}

static void broken(struct balancer_json *reader) { reader->place = OVER; }

/* Some bytes of a value of which all count, as they are written. */
static void take_raw(struct balancer_json *reader, const uint8_t *data, size_t length) {
  if (!of_prompt(reader)) return;
  if (reader->member == THE_PROMPT) balancer_prompt_add(reader->prompt, data, length);
  else if (reader->member == THE_SALT) balancer_hash_add(&reader->prompt->salt, data, length);
  else if (reader->member == THE_TOOLS) balancer_hash_add(&reader->prompt->tools, data, length);
}

static void open_string(struct balancer_json *reader, struct balancer_text *text) {
  reader->text = text;
  reader->high = 0;
  reader->token = STRING;
  balancer_text_clear(text);
}

static void name_member(struct balancer_json *reader, struct balancer_facts *facts) {
  reader->member = OTHER;
  reader->expected = A_COLON;
  if (reader->place == PARAMETERS) facts->parameters++;
  for (size_t i = 0; i < sizeof MEMBERS / sizeof *MEMBERS; i++) {
    unsigned bit = 1U << MEMBERS[i].member;
    if (reader->place != (uint8_t)MEMBERS[i].place || !balancer_text_is(&facts->key, MEMBERS[i].name)) continue;
    if (!(reader->seen & bit) || of_prompt(reader)) reader->member = (uint8_t)MEMBERS[i].member;
    reader->seen = (uint16_t)(reader->seen | bit);
  }
}

static void end_value(struct balancer_json *reader) {
  reader->token = NONE;
  reader->expected = A_COMMA;
  reader->read = (uint16_t)(reader->read | 1U << reader->member);
}

static void enter(struct balancer_json *reader, enum place place) {
  reader->place = (uint8_t)place;
  reader->expected = place == INPUTS || place == SHAPE ? A_VALUE : A_KEY;
  reader->member = OTHER;
  if (place == INPUT) reader->seen = (uint16_t)(reader->seen & ~(1U << THE_SHAPE));
}

static void leave(struct balancer_json *reader, char bracket) {
  static const struct {
    enum place outer;
    enum member member; /* of the outer one, which is read by now */
    char bracket;
  } of[] = {[TOP] = {OVER, OTHER, '}'},
            [PARAMETERS] = {TOP, THE_PARAMETERS, '}'},
            [INPUTS] = {TOP, THE_INPUTS, ']'},
            [INPUT] = {INPUTS, OTHER, '}'},
            [SHAPE] = {INPUT, THE_SHAPE, ']'},
            [OPENAI] = {OVER, OTHER, '}'},
            [GENERATE] = {OVER, OTHER, '}'}};
  uint8_t place = reader->place;
  if (place == START || bracket != of[place].bracket) {
    broken(reader);
    return;
  }
  reader->place = (uint8_t)of[place].outer;
  reader->whole = reader->place == OVER;
  reader->member = (uint8_t)of[place].member;
  end_value(reader);
}

static void begin_container(struct balancer_json *reader, char bracket) {
  bool object = bracket == '{';
  if (reader->place == START && object) enter(reader, first_of(reader));
  else if (reader->place == START) broken(reader);
  else if (is(reader, TOP, THE_PARAMETERS) && object) enter(reader, PARAMETERS);
  else if (is(reader, TOP, THE_INPUTS) && !object) enter(reader, INPUTS);
  else if (reader->place == INPUTS && object) enter(reader, INPUT);
  else if (is(reader, INPUT, THE_SHAPE) && !object) enter(reader, SHAPE);
  else {
    reader->skipped = 1;
    reader->token = SKIP;
  }
}

static bool in_scalar(char byte) {
  return (byte >= '0' && byte <= '9') || (byte >= 'a' && byte <= 'z') || (byte >= 'A' && byte <= 'Z') || byte == '-' ||
         byte == '+' || byte == '.';
}

static void begin_value(struct balancer_json *reader, struct balancer_facts *facts, char byte) {
  if (is(reader, OPENAI, THE_STREAM)) reader->prompt->streams = false;
  if (is(reader, OPENAI, THE_MODEL)) {
    if (reader->prompt->named) {
      /* Which one a server goes by is not known. */
      balancer_refused(facts, "model", "is named twice");
      broken(reader);
      return;
    }
    reader->prompt->named = true;
  }
  if (byte != ']') take_raw(reader, (const uint8_t *)&byte, 1);
  if (byte == '{' || byte == '[') {
    begin_container(reader, byte);
  } else if (byte == ']') {
    leave(reader, byte);
  } else if (reader->place == START) {
    broken(reader);
  } else if (byte == '"') {
    if (is(reader, TOP, THE_ID) || is(reader, PARAMETERS, THE_SEQUENCE) || is(reader, OPENAI, THE_MODEL)) {
      open_string(reader, &facts->value);
    } else {
      reader->skipped = 0;
      reader->token = SKIP_STRING;
    }
  } else if (in_scalar(byte)) {
    balancer_text_clear(&facts->value);
    balancer_text_add(&facts->value, &byte, 1);
    reader->token = SCALAR;
  } else {
    broken(reader);
  }
}

/* A byte outside of strings and scalars. */
static void structure(struct balancer_json *reader, struct balancer_facts *facts, char byte) {
  if (byte == ' ' || byte == '\n' || byte == '\r' || byte == '\t') return;
  if (reader->place == START && strchr("\xEF\xBB\xBF", byte) && byte) return; /* the mark that some begin UTF-8 with */
  switch ((enum expected)reader->expected) {
    case A_VALUE: begin_value(reader, facts, byte); return;
    case A_KEY:
      if (byte == '"') open_string(reader, &facts->key);
      else leave(reader, byte);
      return;
    case A_COLON:
      reader->expected = A_VALUE;
      if (byte != ':') broken(reader);
      return;
    case A_COMMA:
      if (byte != ',') leave(reader, byte);
      else reader->expected = reader->place == INPUTS || reader->place == SHAPE ? A_VALUE : A_KEY;
      return;
  }
}

static bool whole(const struct balancer_text *text) {
  size_t at = text->kept[0] == '-';
  if (text->bytes > sizeof text->kept || text->bytes == at) return false;
  for (; at < text->bytes; at++)
    if (text->kept[at] < '0' || text->kept[at] > '9') return false;
  return true;
}

/* The least of the bounds that are named. */
static void take_most(struct balancer_prompt *prompt, const struct balancer_text *value) {
  uint32_t most = 0;
  if (!whole(value) || value->bytes > 9 || value->kept[0] < '1') return;
  for (size_t i = 0; i < value->bytes; i++) most = most * 10 + (uint32_t)(value->kept[i] - '0');
  if (!prompt->max_tokens || most < prompt->max_tokens) prompt->max_tokens = most;
}

static void end_scalar(struct balancer_json *reader, struct balancer_facts *facts) {
  if (reader->place == SHAPE) {
    struct balancer_digits digits;
    int64_t dimension = 0;
    balancer_digits_take(&digits, &facts->value);
    /* Longer ones are no batch either. */
    for (size_t i = 0; i < digits.length && digits.length < 19; i++) dimension = dimension * 10 + (digits.at[i] - '0');
    balancer_dimension(facts, dimension);
  } else if (is(reader, PARAMETERS, THE_SEQUENCE) && whole(&facts->value)) {
    balancer_text_copy(&facts->sequence, &facts->value);
    if (balancer_text_is(&facts->value, "-0")) {
      balancer_text_clear(&facts->sequence);
      balancer_text_add(&facts->sequence, "0", 1);
    }
  } else if (is(reader, PARAMETERS, THE_PRIORITY)) {
    balancer_digits_take(&facts->priority, &facts->value);
  } else if (is(reader, PARAMETERS, THE_TIMEOUT)) {
    balancer_digits_take(&facts->timeout, &facts->value);
  } else if (is(reader, OPENAI, THE_STREAM)) {
    reader->prompt->streams = balancer_text_is(&facts->value, "true");
  } else if (of_prompt(reader) && reader->member == THE_MOST) {
    take_most(reader->prompt, &facts->value);
  }
  end_value(reader);
}

static void add_point(struct balancer_json *reader, uint32_t point) {
  uint32_t high = reader->high;
  reader->high = 0;
  if (high && point >= 0xDC00 && point <= 0xDFFF) {
    balancer_text_add_point(reader->text, 0x10000 + ((high - 0xD800) << 10) + (point - 0xDC00));
    return;
  }
  if (high) balancer_text_add_point(reader->text, high);
  if (point >= 0xD800 && point <= 0xDBFF) reader->high = point;
  else balancer_text_add_point(reader->text, point);
}

static enum balancer_progress end_string(struct balancer_json *reader, struct balancer_facts *facts) {
  if (reader->high) balancer_text_add_point(reader->text, reader->high);
  reader->token = NONE;
  if (reader->text == &facts->key) {
    name_member(reader, facts);
    return BALANCER_MORE;
  }
  bool id = is(reader, TOP, THE_ID), model = is(reader, OPENAI, THE_MODEL);
  if (!balancer_text_valid(&facts->value))
    return balancer_refused(facts, id ? "id" : model ? "model" : "sequence_id", "is not UTF-8");
  balancer_text_copy(id ? &facts->id : model ? &facts->model : &facts->sequence, &facts->value);
  end_value(reader);
  return BALANCER_MORE;
}

static void escape(struct balancer_json *reader, char byte) {
  static const char names[] = "bfnrt\"\\/", points[] = "\b\f\n\r\t\"\\/";
  const char *found = byte ? strchr(names, byte) : NULL;
  reader->token = STRING;
  if (found) {
    add_point(reader, (uint32_t)points[found - names]);
  } else if (byte == 'u') {
    reader->token = UNICODE;
    reader->point = reader->digits = 0;
  } else {
    broken(reader);
  }
}

static void unicode(struct balancer_json *reader, char byte) {
  uint32_t digit = byte >= '0' && byte <= '9' ? (uint32_t)(byte - '0')
                   : byte >= 'a' && byte <= 'f' ? (uint32_t)(byte - 'a' + 10)
                   : byte >= 'A' && byte <= 'F' ? (uint32_t)(byte - 'A' + 10) : 16;
  if (digit > 15) {
    broken(reader);
    return;
  }
  reader->point = reader->point << 4 | digit;
  if (++reader->digits < 4) return;
  add_point(reader, reader->point);
  reader->token = STRING;
}

static uint64_t eight(const uint8_t *data) {
  uint64_t word;
  memcpy(&word, data, sizeof word);
  return word;
}

/* Whether one of eight bytes is that one. Source: S. E. Anderson, "Bit Twiddling Hacks". */
static uint64_t has(uint64_t word, uint8_t byte) {
  const uint64_t ones = UINT64_C(0x0101010101010101);
  uint64_t zero = word ^ ones * byte;
  return (zero - ones) & ~zero & ones << 7;
}

/* How many bytes of numbers and the like precede a quote or a bracket; big arrays are full of them. */
static size_t to_structure(const uint8_t *data, size_t length) {
  size_t at = 0;
  for (; length - at >= 8; at += 8) {
    uint64_t word = eight(data + at), folded = word | UINT64_C(0x2020202020202020); /* [ is { then, and ] is } */
    if (has(word, '"') | has(folded, '{') | has(folded, '}')) break;
  }
  while (at < length && data[at] != '"' && (data[at] | 0x20) != '{' && (data[at] | 0x20) != '}') at++;
  return at;
}

/* How many bytes of a string precede its end or an escape. */
static size_t to_end(const uint8_t *data, size_t length) {
  size_t at = 0;
  for (; length - at >= 8; at += 8) {
    uint64_t word = eight(data + at);
    if (has(word, '"') | has(word, '\\')) break;
  }
  while (at < length && data[at] != '"' && data[at] != '\\') at++;
  return at;
}

/* Read on in what is skipped; returns how many bytes of it were read. */
static size_t skip(struct balancer_json *reader, const uint8_t *data, size_t length) {
  size_t at = to_structure(data, length);
  if (at == length) return at;
  if (data[at] == '"') reader->token = SKIP_STRING;
  else if (data[at] == '[' || data[at] == '{') reader->skipped++;
  else if (!--reader->skipped) end_value(reader);
  return at + 1;
}

static size_t skip_string(struct balancer_json *reader, const uint8_t *data, size_t length) {
  size_t at = to_end(data, length);
  if (at == length) return at;
  if (data[at] == '\\') reader->token = SKIP_ESCAPE;
  else if (reader->skipped) reader->token = SKIP;
  else end_value(reader);
  return at + 1;
}

/* Read on in a string that is kept. */
static size_t string(struct balancer_json *reader, struct balancer_facts *facts, const uint8_t *data, size_t length,
                     enum balancer_progress *progress) {
  size_t at = to_end(data, length);
  if (at) {
    if (reader->high) balancer_text_add_point(reader->text, reader->high);
    reader->high = 0;
    balancer_text_add(reader->text, data, at);
  }
  if (at == length) return at;
  if (data[at] == '"') *progress = end_string(reader, facts);
  else reader->token = ESCAPE;
  return at + 1;
}

static bool all_read(const struct balancer_json *reader, const struct balancer_facts *facts) {
  unsigned wanted = 1U << THE_ID | 1U << THE_PARAMETERS;
  return facts->has_rows && (reader->read & wanted) == wanted;
}

static enum balancer_progress over(const struct balancer_facts *facts) {
  return facts->field ? BALANCER_REFUSED : BALANCER_DONE;
}

/* `taken`: how many of the bytes were read. */
static enum balancer_progress feed(struct balancer_json *reader, struct balancer_facts *facts, const uint8_t *data,
                                   size_t length, size_t *taken) {
  enum balancer_progress progress = BALANCER_MORE;
  size_t at = 0;
  for (; at < length && progress == BALANCER_MORE; *taken = at) {
    size_t from = at;
    if (reader->place == OVER || (reader->token == NONE && all_read(reader, facts))) return over(facts);
    switch ((enum token)reader->token) {
      case NONE: structure(reader, facts, (char)data[at++]); break;
      case STRING: at += string(reader, facts, data + at, length - at, &progress); break;
      case ESCAPE: escape(reader, (char)data[at++]); break;
      case UNICODE: unicode(reader, (char)data[at++]); break;
      case SCALAR:
        if (in_scalar((char)data[at])) balancer_text_add(&facts->value, data + at++, 1), take_raw(reader, data + from, 1);
        else end_scalar(reader, facts);
        break;
      case SKIP:
        at += skip(reader, data + at, length - at);
        take_raw(reader, data + from, at - from);
        break;
      case SKIP_STRING:
        at += skip_string(reader, data + at, length - at);
        take_raw(reader, data + from, at - from);
        break;
      case SKIP_ESCAPE:
        take_raw(reader, data + at++, 1);
        reader->token = SKIP_STRING;
        break;
    }
  }
  if (progress == BALANCER_MORE && (reader->place == OVER || (reader->token == NONE && all_read(reader, facts))))
    return over(facts);
  return progress;
}

enum balancer_progress balancer_json_feed(struct balancer_json *reader, struct balancer_facts *facts,
                                          const uint8_t *data, size_t length) {
  size_t taken = 0;
  enum balancer_progress progress = feed(reader, facts, data, length, &taken);
  reader->bytes += taken;
  return progress;
}
