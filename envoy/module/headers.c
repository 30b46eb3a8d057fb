#include "request.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_DIGITS = 20 };

struct text balancer_header(struct balancer_headers headers, struct text name) {
  struct text value = {NULL, 0};
  if (name.ptr) value.ptr = headers.get(headers.context, name.ptr, name.length, &value.length);
  if (!value.ptr) value = (struct text){"", 0};
  return value;
}

struct named_kind {
  const char *name;
  enum balancer_kind kind;
};

static bool find_kind(const struct named_kind *kinds, size_t count, struct text name, enum balancer_kind *kind) {
  for (size_t i = 0; i < count; i++) {
    if (!equals(name, kinds[i].name)) continue;
    *kind = kinds[i].kind;
    return true;
  }
  return false;
}

enum balancer_kind balancer_grpc_kind(struct text path) {
  static const struct named_kind methods[] = {BALANCER_METHODS};
  enum balancer_kind kind = BALANCER_PER_SERVER;
  struct text method = path;
  if (begins(path, BALANCER_HEALTH)) return BALANCER_SERVER;
  if (!begins(path, BALANCER_SERVICE)) return BALANCER_PER_SERVER;
  method.ptr += sizeof BALANCER_SERVICE - 1;
  method.length -= sizeof BALANCER_SERVICE - 1;
  find_kind(methods, sizeof methods / sizeof *methods, method, &kind);
  return kind;
}

/* The path up to its next slash; `rest` begins with that slash, or is empty. */
static struct text segment(struct text *rest) {
  struct text found = {rest->ptr + 1, rest->length - 1};
  const char *slash = found.length ? memchr(found.ptr, '/', found.length) : NULL;
  if (slash) found.length = (size_t)(slash - found.ptr);
  rest->ptr += 1 + found.length;
  rest->length -= 1 + found.length;
  return found;
}

static bool of_server(const struct balancer_text *decoded) {
  static const char *const paths[] = {BALANCER_REST_SERVER};
  struct text path = kept_of(decoded);
  if (path.length && path.ptr[path.length - 1] == '/') path.length--;
  for (size_t i = 0; i < sizeof paths / sizeof *paths; i++)
    if (equals(path, paths[i])) return true;
  return false;
}

/* What stands after "/v2/models": "/MODEL[/versions/VERSION][/VERB][/]". Slashes are never encoded here. */
static enum balancer_kind of_model(struct text rest, struct balancer_text *model, struct balancer_text *version,
                                   enum balancer_asks *asks) {
  static const struct named_kind verbs[] = {BALANCER_REST_VERBS};
  struct text name = segment(&rest), after = rest;
  struct balancer_text word;
  enum balancer_kind kind = BALANCER_MODEL;
  if (!name.length) return BALANCER_PER_SERVER;
  balancer_text_add_path(model, name.ptr, name.length);
  if (rest.length) {
    balancer_text_clear(&word);
    name = segment(&after);
    balancer_text_add_path(&word, name.ptr, name.length);
    if (balancer_text_is(&word, "versions") && after.length > 1 && after.ptr[1] != '/') {
      name = segment(&after);
      balancer_text_add_path(version, name.ptr, name.length);
      rest = after;
    }
  }
  if (rest.length > 1) {
    balancer_text_clear(&word);
    name = segment(&rest);
    balancer_text_add_path(&word, name.ptr, name.length);
    if (!find_kind(verbs, sizeof verbs / sizeof *verbs, kept_of(&word), &kind)) return BALANCER_PER_SERVER;
    if (balancer_text_is(&word, "infer")) *asks = BALANCER_ASKS_TENSORS;
    else if (kind < BALANCER_MODEL) *asks = BALANCER_ASKS_GENERATE;
  }
  /* A slash at the end is as good as none. */
  return rest.length > 1 ? BALANCER_PER_SERVER : kind;
}

enum balancer_kind balancer_rest_kind(struct text path, struct balancer_text *model,
                                      struct balancer_text *version, enum balancer_asks *asks) {
  static const char *const of_openai[] = {BALANCER_PROMPT_PATHS};
  struct balancer_text decoded;
  struct text rest = path;
  for (size_t i = 0; i < sizeof of_openai / sizeof *of_openai; i++) {
    if (!equals(path, of_openai[i])) continue;
    *asks = BALANCER_ASKS_OPENAI;
    return BALANCER_INFERENCE;
  }
  balancer_text_clear(&decoded);
  /* A slash within a name is a path of another call to whoever decodes it earlier. */
  if (!balancer_text_add_path(&decoded, path.ptr, path.length)) return BALANCER_PER_SERVER;
  if (of_server(&decoded)) return BALANCER_SERVER;
  for (int i = 0; i < 2; i++) {
    if (!rest.length || *rest.ptr != '/') return BALANCER_PER_SERVER;
    balancer_text_clear(&decoded);
    struct text word = segment(&rest);
    balancer_text_add_path(&decoded, word.ptr, word.length);
    if (!balancer_text_is(&decoded, i ? "models" : "v2")) return BALANCER_PER_SERVER;
  }
  return rest.length ? of_model(rest, model, version, asks) : BALANCER_PER_SERVER;
}

bool balancer_refuse(struct balancer_refusal *refusal, struct text field, const struct balancer_text *value,
                     const char *rule) {
  char shown[BALANCER_SHOWN_BYTES];
  int width = field.length < BALANCER_FIELD_SHOWN_BYTES ? (int)field.length : BALANCER_FIELD_SHOWN_BYTES;
  balancer_text_shown(value, shown);
  refusal->field = field;
  snprintf(refusal->text, sizeof refusal->text, "%.*s: %s is refused; it %s", width, field.ptr, shown, rule);
  return false;
}

bool balancer_text_within(const struct balancer_text *text, struct text field, struct balancer_refusal *refusal) {
  char rule[64];
  if (text->bytes <= BALANCER_MAX_TEXT_BYTES) return true;
  snprintf(rule, sizeof rule, "has %d bytes at most", BALANCER_MAX_TEXT_BYTES);
  return balancer_refuse(refusal, field, text, rule);
}

bool balancer_header_text(struct balancer_headers headers, struct text name, struct balancer_text *text,
                          struct balancer_refusal *refusal) {
  struct text value = balancer_header(headers, name);
  balancer_text_clear(text);
  balancer_text_add_latin1(text, value.ptr, value.length);
  return balancer_text_within(text, name, refusal);
}

/* Python's str.strip(), of Latin-1. */
static bool is_space(char character) {
  uint8_t byte = (uint8_t)character;
  return byte == ' ' || (byte >= '\t' && byte <= '\r') || (byte >= 0x1C && byte <= 0x1F) || byte == 0x85 || byte == 0xA0;
}

static struct text stripped(struct text span) {
  while (span.length && is_space(*span.ptr)) span.ptr++, span.length--;
  while (span.length && is_space(span.ptr[span.length - 1])) span.length--;
  return span;
}

static bool refuse_span(struct balancer_refusal *refusal, struct text field, struct text value,
                        const char *rule) {
  struct balancer_text text;
  balancer_text_clear(&text);
  balancer_text_add_latin1(&text, value.ptr, value.length);
  return balancer_refuse(refusal, field, &text, rule);
}

bool balancer_header_whole(struct balancer_headers headers, struct text name, uint32_t least, uint32_t most,
                           uint32_t *value, struct balancer_refusal *refusal) {
  struct text given = stripped(balancer_header(headers, name)), digits = given;
  uint64_t number;
  size_t count;
  char rule[80];
  *value = 0;
  if (!given.length) return true;
  bool minus = *given.ptr == '-';
  digits.ptr += minus;
  digits.length -= minus;
  count = digits_of(digits, &number);
  if (count && count <= MAX_DIGITS && count == digits.length && !(minus && number) && number >= least && number <= most) {
    *value = (uint32_t)number;
    return true;
  }
  snprintf(rule, sizeof rule, "is a whole number from %" PRIu32 " to %" PRIu32, least, most);
  return refuse_span(refusal, name, given, rule);
}

void balancer_digits_take(struct balancer_digits *digits, const struct balancer_text *text) {
  uint64_t value;
  struct text span = kept_of(text);
  size_t count = digits_of(span, &value);
  digits->length = 0;
  if (!count || count > MAX_DIGITS || count != text->bytes) return;
  digits->length = (uint8_t)count;
  memcpy(digits->at, span.ptr, count);
}

bool balancer_digits_within(const struct balancer_digits *digits, const char *field, uint64_t most, uint64_t *value,
                            struct balancer_refusal *refusal) {
  struct text span = {digits->at, digits->length};
  char rule[80];
  digits_of(span, value);
  if (*value <= most) return true;
  snprintf(rule, sizeof rule, "is a whole number from 0 to %" PRIu64, most);
  return refuse_span(refusal, (struct text){field, strlen(field)}, span, rule);
}

static bool grpc_timeout(struct text text, double *seconds) {
  static const struct {
    char unit;
    double seconds;
  } units[] = {BALANCER_TIMEOUT_UNITS};
  uint64_t value;
  size_t count = digits_of(text, &value);
  if (!count || count > 8 || count + 1 != text.length) return false;
  for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
    if (units[i].unit != text.ptr[count]) continue;
    *seconds = (double)value * units[i].seconds;
    return true;
  }
  return false;
}

/* "D" or "D.D" with 1 to 20 digits each. */
static bool decimal(struct text text, double *value) {
  char copy[2 * MAX_DIGITS + 2], *end;
  uint64_t part;
  size_t count = digits_of(text, &part), after = 0;
  if (!count || count > MAX_DIGITS) return false;
  if (count < text.length) {
    struct text rest = {text.ptr + count + 1, text.length - count - 1};
    after = digits_of(rest, &part);
    if (text.ptr[count] != '.' || !after || after > MAX_DIGITS || after != rest.length) return false;
  }
  memcpy(copy, text.ptr, text.length);
  copy[text.length] = 0;
  *value = strtod(copy, &end);
  return !*end;
}

static double least(double one, double other) { return other < one ? other : one; }

bool balancer_deadline(struct balancer_headers headers, struct text name, const struct balancer_digits *timeout,
                       double *deadline_s, struct balancer_refusal *refusal) {
  struct text text = balancer_header(headers, TEXT(BALANCER_GRPC_TIMEOUT));
  uint64_t microseconds;
  double value;
  *deadline_s = INFINITY;
  if (text.length) {
    if (!grpc_timeout(text, &value))
      return refuse_span(refusal, TEXT(BALANCER_GRPC_TIMEOUT), text,
                         "has 1 to 8 digits and a unit of H, M, S, m, u or n");
    *deadline_s = least(*deadline_s, value);
  }
  if (!balancer_digits_within(timeout, "timeout", INT64_MAX, &microseconds, refusal)) return false;
  if (microseconds) *deadline_s = least(*deadline_s, (double)microseconds * 1e-6);
  text = stripped(balancer_header(headers, name));
  if (text.length) {
    if (!decimal(text, &value) || !(value > 0 && value <= BALANCER_MAX_DEADLINE_MS))
      return refuse_span(refusal, name, text, "is a number above 0, and " BALANCER_MAX_DEADLINE_MS_SHOWN " at most");
    *deadline_s = least(*deadline_s, value * 1e-3);
  }
  return true;
}
