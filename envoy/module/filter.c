#define _GNU_SOURCE
#include "filter.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HOOKED EXPORTED
/* Metadata for Envoy's log and traces. */
static const struct text SPACE = TEXT(NAME_SPACE), DESTINATION = TEXT(NAME_DESTINATION);

enum { MOST_SPARE = 1024, MOST_LATE = 4096 };
static _Thread_local struct request *spare;
static _Thread_local unsigned spares;
/* Whose end could not be counted yet. All threads', so that none waits for the next request of a thread that has none. */
static pthread_mutex_t late_mutex = PTHREAD_MUTEX_INITIALIZER;
static struct request *late;
static _Atomic unsigned lates;

const char *missing_callback(void) {
#define LOOK_FOR(returns, name, ...) \
  if (!CALLBACK(name)) return #name;
  CALLBACKS(LOOK_FOR)
  return NULL;
}

HOOKED const char *HOOK(program_init)(void) { return ABI_VERSION; }

/* Up to the end of its first line; `rest` is then what stands behind. */
static struct text line_of(struct text *rest) {
  const char *end = rest->length ? memchr(rest->ptr, '\n', rest->length) : NULL;
  struct text line = {rest->ptr, end ? (size_t)(end - rest->ptr) : rest->length};
  size_t used = line.length + (end != NULL);
  *rest = (struct text){rest->ptr + used, rest->length - used};
  return line;
}

/* A config is the path of the library, that of the folder, whether decisions are written as metadata, a line each, and the
   models that the balancer forwards. What keeps it from being used is logged once; then the balancer decides, as without
   this filter. */
HOOKED const void *HOOK(http_filter_config_new)(void *envoy, struct text name, struct text config) {
  (void)envoy, (void)name;
  struct source *source = NULL;
  char paths[1024];
  const char *lacking = missing_callback(), *why = "its config is not two paths";
  struct text rest = config, kernel = line_of(&rest), folder = line_of(&rest), metadata = line_of(&rest);
  if (kernel.length && folder.length && kernel.length + folder.length + 2 <= sizeof paths) {
    int length = snprintf(paths, sizeof paths, "%.*s", (int)kernel.length, kernel.ptr);
    snprintf(paths + length + 1, sizeof paths - kernel.length - 1, "%.*s", (int)folder.length, folder.ptr);
    why = lacking;
    if (!lacking) source = source_new(paths, paths + length + 1, &why);
    if (source) source->leaves_metadata = same(metadata, TEXT(NAME_LEAVES_METADATA));
    if (source && forwarded_read(&source->forwarded, rest)) return source;
    if (source) why = "its config is no list of models";
  }
  struct source *none = calloc(1, sizeof *none);
  if (!none) return NULL;
  pthread_mutex_init(&none->mutex, NULL);
  log_warning(none, lacking ? "Envoy lacks a callback, and chooses itself" : "the balancer is asked", why);
  return none;
}

HOOKED void HOOK(http_filter_config_destroy)(const void *config) { source_leave((struct source *)config); }

HOOKED const void *HOOK(http_filter_new)(const void *config, void *envoy) {
  (void)envoy;
  struct request *request = spare;
  if (request) {
    spare = request->next;
    spares--;
  } else if (!(request = malloc(sizeof *request))) {
    return NULL;
  }
  memset(request, 0, offsetof(struct request, decision));
  request->decision.answer = LEAST_REQUEST;
  request->source = (struct source *)config;
  request->ending.grpc_status = -1;
  request->reader.inflate = NULL;
  struct ending *ending = &request->ending;
  ending->pick_s = ending->decision_s = ending->first_byte_s = ending->latency_s = NAN;
  ending->first_token_s = ending->answering_s = NAN;
  return request;
}

static void let_go(struct request *request) {
  if (request->attached) source_give(request->source, request->attached);
  request->attached = NULL;
  if (spares >= MOST_SPARE) {
    free(request);
    return;
  }
  request->next = spare;
  spare = request;
  spares++;
}

/* When to come again, where that may help: by chance, as those that are turned away together must not come back together.
   As `pushback_ms` of balancer/extproc/responses.py. */
static struct header come_again(bool grpc, char *digits, size_t room) {
  uint64_t mean = PUSHBACK_MS, wait_ms = mean / 2 + balancer_mix(now_ns()) % (mean + 1);
  int length = snprintf(digits, room, "%" PRIu64, grpc ? wait_ms : (wait_ms + 999) / 1000);
  return (struct header){grpc ? TEXT(NAME_PUSHBACK) : TEXT("retry-after"), {digits, (size_t)length}};
}

/* One character of UTF-8 from `text`, which is well-formed or cut at its end; returns how many bytes it took. */
static size_t character(const uint8_t *text, size_t left, uint32_t *found) {
  size_t size = text[0] < 0x80 ? 1 : text[0] < 0xe0 ? 2 : text[0] < 0xf0 ? 3 : 4;
  *found = size == 1 ? text[0] : text[0] & (0xffu >> (size + 1));
  if (size > left) size = left;
  for (size_t i = 1; i < size; i++) *found = *found << 6 | (text[i] & 0x3f);
  return size;
}

/* What stands around the message of an error of REST. */
struct error_form {
  const char *begin;
  char end[128];
};

/* As Triton writes it, or OpenAI. */
static struct error_form error_form(enum balancer_port port, uint32_t http_status) {
  static const struct {
    uint32_t status;
    const char *type, *code;
  } errors[] = {OPENAI_ERRORS};
  struct error_form form = {"{\"error\":\"", "\"}"};
  for (size_t i = 0; port == BALANCER_OPENAI_PORT && i < sizeof errors / sizeof *errors; i++) {
    if (errors[i].status != http_status) continue;
    form.begin = "{\"error\":{\"message\":\"";
    snprintf(form.end, sizeof form.end, "\",\"type\":\"%s\",\"param\":null,\"code\":%s}}", errors[i].type, errors[i].code);
  }
  return form;
}

/* An error of REST, its message as Python's `json.dumps` escapes it; returns how long it is. */
static size_t json_error(struct error_form form, const char *message, size_t length, char *out, size_t room) {
  size_t at = strlen(form.begin), end = strlen(form.end);
  memcpy(out, form.begin, at);
  for (size_t i = 0; i < length && at + 13 + end < room;) {
    uint32_t c;
    i += character((const uint8_t *)message + i, length - i, &c);
    if (c && c < 0x80 && strchr("\"\\\n\r\t\b\f", (int)c)) {
      out[at++] = '\\';
      out[at++] = c == '\n' ? 'n' : c == '\r' ? 'r' : c == '\t' ? 't' : c == '\b' ? 'b' : c == '\f' ? 'f' : (char)c;
    } else if (c >= 0x20 && c < 0x7f) {
      out[at++] = (char)c;
    } else if (c < 0x10000) {
      at += (size_t)snprintf(out + at, room - at, "\\u%04x", (unsigned)c);
    } else {
      c = (c - 0x10000) & 0xfffff;
      at += (size_t)snprintf(out + at, room - at, "\\u%04x\\u%04x", 0xd800u + (unsigned)(c >> 10),
                             0xdc00u + (unsigned)(c & 0x3ff));
    }
  }
  memcpy(out + at, form.end, end);
  return at + end;
}

static void respond(void *filter, enum balancer_port port, uint32_t http_status, uint32_t grpc_status, struct text words) {
  bool grpc = port == BALANCER_GRPC_PORT;
  char code[12], wait[24], body[2 * MOST_MESSAGE];
  struct header headers[2];
  if (grpc) {
    int length = snprintf(code, sizeof code, "%u", grpc_status);
    headers[0] = (struct header){TEXT("grpc-status"), {code, (size_t)length}};
  } else {
    headers[0] = (struct header){TEXT("content-type"), TEXT("application/json")};
    words = (struct text){body, json_error(error_form(port, http_status), words.ptr, words.length, body, sizeof body)};
  }
  bool shed = grpc_status == GRPC_SHED;
  if (shed) headers[1] = come_again(grpc, wait, sizeof wait);
  CALLBACK(http_send_response)(filter, http_status, headers, shed ? 2 : 1, words, TEXT("balancer"));
}

/* It cannot be decided here: the route is that to the listener which asks. Before anybody else looked at the request. */
static int ask_balancer(void *filter) {
  if (!CALLBACK(http_set_header) || !CALLBACK(http_clear_route_cache)) return HEADERS_CONTINUE;
  CALLBACK(http_set_header)(filter, REQUEST_HEADERS, TEXT(NAME_ASKING_HEADER), TEXT(NAME_ASKING));
  CALLBACK(http_clear_route_cache)(filter);
  return HEADERS_CONTINUE;
}

/* For Envoy's logs and traces. */
static void set_metadata(void *filter, const struct request *request) {
  if (!request->source->leaves_metadata) return;
  const struct decision *decision = &request->decision;
  bool taken = decision->answer == TAKEN;
  char number[24], pick_us[24];
  int digits = taken ? snprintf(number, sizeof number, "%" PRIu64, decision->number) : 0;
  int letters = taken ? snprintf(pick_us, sizeof pick_us, "%.1f", 1e6 * request->ending.pick_s) : 0;
  struct header all[] = {
    {DESTINATION, {decision->words, decision->answer == TURNED_AWAY || decision->among ? 0 : decision->length}},
    {TEXT(NAME_TRITON_ID), request->features.id},
    {TEXT(NAME_MODEL), request->features.model},
    {TEXT(NAME_POLICY), {decision->policy, strnlen(decision->policy, sizeof decision->policy)}},
    {TEXT(NAME_NUMBER), {number, (size_t)digits}},
    {TEXT(NAME_PICK_US), {pick_us, (size_t)letters}},
  };
  struct header given[sizeof all / sizeof *all];
  size_t count = 0;
  for (size_t i = 0; i < sizeof all / sizeof *all; i++)
    if (all[i].value.length) given[count++] = all[i];
  if (count) CALLBACK(http_set_dynamic_metadata_string_batch)(filter, SPACE, given, count);
}

/* True: the balancer forwards it, and the rest of it passes. Whether it can, Envoy's route says: that of a raw tensor or of
   too large a body is another one. Such a request the balancer is asked about where it limits tenants, who would else get
   past their limits here. Before anybody else looked at the request. */
static bool forward(void *filter, struct request *request) {
  const struct balancer_facts *facts = &request->reader.facts;
  struct text model = kept_of(&facts->model), route = {NULL, 0};
  if (facts->model.bytes != model.length || !forwarded_has(&request->source->forwarded, model)) return false;
  if (!CALLBACK(http_filter_get_attribute_string)(filter, ROUTE_NAME, &route) || !same(route, TEXT(NAME_FORWARDABLE))) {
    bool inference = request->reader.features.kind == BALANCER_INFERENCE || request->reader.features.kind == BALANCER_STREAM;
    if (inference && atomic_load(&request->attached->limits_tenants)) {
      request->stage = PASSED;
      ask_balancer(filter);
      return true;
    }
    return false;
  }
  request->stage = PASSED;
  balancer_reader_release(&request->reader);
  request->features.model = model;
  request->features.id = kept_of(&facts->id);
  request->decision.length = 0;
  request->decision.policy[0] = 0;
  set_metadata(filter, request);
  CALLBACK(http_set_header)(filter, REQUEST_HEADERS, TEXT(NAME_FORWARDED_HEADER), TEXT(NAME_FORWARDED));
  CALLBACK(http_clear_route_cache)(filter);
  return true;
}

/* The first attempt goes to the worker that was picked, the next ones to the fallbacks. */
static void name_workers(void *filter, struct request *request) {
  const struct decision *decision = &request->decision;
  struct text all = {decision->words, decision->length};
  if ((request->among = decision->among)) {
    fallbacks_keep(request, all);
    return;
  }
  const char *comma = memchr(all.ptr, ',', all.length);
  struct text picked = {all.ptr, comma ? (size_t)(comma - all.ptr) : all.length};
  CALLBACK(http_set_upstream_override_host)(filter, picked, false);
  if (comma) {
    struct text fallbacks = {comma + 1, all.length - picked.length - 1};
    fallbacks_keep(request, fallbacks);
  }
  if (decision->sequence)
    CALLBACK(http_set_header)(filter, REQUEST_HEADERS, TEXT(NAME_MAX_RETRIES), TEXT("0"));
}

/* True: the request goes on. */
static bool settle(void *filter, struct request *request) {
  struct decision *decision = &request->decision;
  decide(request->source, request->attached, &request->features, decision);
  request->stage = decision->answer == BALANCER_DECIDES ? PASSED : OURS;
  if (request->stage == PASSED) {
    balancer_reader_release(&request->reader);
    ask_balancer(filter);
    return true;
  }
  struct text words = {decision->words, decision->length};
  request->began_ns = decision->at_ns ? decision->at_ns : now_ns();
  request->ending.pick_s = seconds_since(request->features.came_ns, request->began_ns);
  if (decision->answer == TAKEN) request->ending.decision_s = seconds_since(request->features.read_ns, now_ns());
  set_metadata(filter, request);
  if (decision->answer == TURNED_AWAY) {
    request->stage = ENDED;
    respond(filter, request->features.port, decision->http_status, decision->grpc_status, words);
    return false;
  }
  if (decision->version[0]) version_write(filter, request);
  if (decision->length) name_workers(filter, request);
  return true;
}

/* Headers of the request at hand. */
struct seen {
  const struct header *all;
  size_t count;
  uint64_t bits; /* `name_bit` of each: most that are looked for are not there */
};

static const char *header_of(void *context, const char *name, size_t length, size_t *value_length) {
  const struct seen *seen = context;
  if (!(seen->bits & name_bit(name, length))) return NULL;
  for (size_t i = seen->count; i-- > 0;) {
    if (seen->all[i].name.length != length || memcmp(seen->all[i].name.ptr, name, length)) continue;
    *value_length = seen->all[i].value.length;
    return seen->all[i].value.ptr;
  }
  return NULL;
}

/* All of them, which Envoy hands over at once much faster than one by one. They hold until the hook returns, or a header
   is set. None: there are more than anybody may send. */
static struct seen look_at_headers(void *filter, struct header all[MOST_HEADERS]) {
  struct seen seen = {.all = all};
  size_t count = CALLBACK(http_get_headers_size)(filter, REQUEST_HEADERS);
  if (count > MOST_HEADERS || !CALLBACK(http_get_headers)(filter, REQUEST_HEADERS, all)) return seen;
  seen.count = count;
  for (size_t i = 0; i < count; i++)
    if (all[i].name.length) seen.bits |= name_bit(all[i].name.ptr, all[i].name.length);
  return seen;
}

/* Copies those that are looked at when the body is there, as being handed all of them again costs a third of a decision.
   Where they are too long for that, they are asked for again. */
static void keep_headers(struct request *request, const struct seen *seen) {
  struct kept *kept = &request->kept;
  size_t used = 0;
  kept->count = 0;
  kept->bits = 0;
  kept->whole = true;
  for (size_t i = 0; i < seen->count; i++) {
    const struct header *header = &seen->all[i];
    uint64_t bit = header->name.length ? name_bit(header->name.ptr, header->name.length) : 0;
    if (!(bit & request->names->bits)) continue;
    size_t name = header->name.length, value = header->value.length;
    if (kept->count == MOST_KEPT || name > sizeof kept->texts - used || value > sizeof kept->texts - used - name) {
      kept->whole = false;
      return;
    }
    char *at = kept->texts + used;
    memcpy(at, header->name.ptr, name);
    if (value) memcpy(at + name, header->value.ptr, value);
    kept->all[kept->count++] = (struct header){{at, name}, {at + name, value}};
    kept->bits |= bit;
    used += name + value;
  }
}

static struct seen kept_headers(void *filter, const struct request *request, struct header all[MOST_HEADERS]) {
  const struct kept *kept = &request->kept;
  if (!kept->whole) return look_at_headers(filter, all);
  return (struct seen){kept->all, kept->count, kept->bits};
}

static void answer_invalid(void *filter, const struct request *request, const struct balancer_refusal *refusal) {
  struct text words = {refusal->text, strnlen(refusal->text, sizeof refusal->text)};
  if (refusal->exhausted) respond(filter, request->features.port, CODES_EXHAUSTED, words);
  else respond(filter, request->features.port, CODES_INVALID, words);
}

static bool refuse(void *filter, struct request *request, const struct balancer_refusal *refusal) {
  request->stage = ENDED;
  const struct balancer_text *model = &request->reader.facts.model;
  request->features.kind = request->reader.features.kind;
  if (model->bytes <= sizeof model->kept) request->features.model = (struct text){model->kept, model->bytes};
  invalid(request->attached, &request->features, CODES_INVALID, refusal->field);
  answer_invalid(filter, request, refusal);
  return false;
}

/* Whether the worker can begin: it has all of the request, or all of the first message of a stream. */
static bool has_arrived(const struct request *request) {
  return request->uploaded_ns || balancer_reader_has_message(&request->reader);
}

/* Once more of the body has passed. */
static void arrive(struct request *request) {
  if (!request->features.waits || request->decision.answer != TAKEN || !has_arrived(request)) return;
  request->features.waits = false;
  place_resume(request->source, request->attached, &request->features, &request->decision);
}

/* All has been read that is needed. True: the request goes on. */
static bool judge_request(void *filter, struct request *request, struct seen seen, uint64_t read_ns) {
  struct balancer_refusal refusal;
  struct balancer_headers headers = {header_of, &seen};
  if (request->reader.features.grpc && request->reader.progress != BALANCER_REFUSED && forward(filter, request)) return true;
  request->features.grpc = request->reader.features.grpc;
  request->features.port = request->reader.features.port;
  const struct features *read = balancer_reader_finish(&request->reader, &request->names->of, headers, &refusal);
  if (!read) return refuse(filter, request, &refusal);
  request->features = *read;
  request->features.came_ns = request->came_ns;
  request->features.read_ns = read_ns;
  request->features.waits = !request->features.prompt && !has_arrived(request);
  return settle(filter, request);
}

HOOKED int HOOK(http_filter_request_headers)(void *filter, const void *module, bool end) {
  struct request *request = (struct request *)module;
  request->stage = PASSED;
  if (!request->source->kernel.library || !(request->attached = source_take(request->source)))
    return ask_balancer(filter);
  struct header all[MOST_HEADERS];
  if (!(request->names = atomic_load(&request->attached->names))) return ask_balancer(filter);
  struct seen seen = look_at_headers(filter, all);
  if (!seen.count) return ask_balancer(filter);
  struct balancer_headers headers = {header_of, &seen};
  size_t path_length;
  request->path = header_of(&seen, ":path", 5, &path_length);
  enum balancer_progress progress = balancer_reader_start(&request->reader, headers, !end);
  if (request->reader.features.kind == BALANCER_PER_SERVER) return HEADERS_CONTINUE;
  /* Over REST the path has the model. */
  if (!request->reader.features.grpc && forward(filter, request)) return HEADERS_CONTINUE;
  request->came_ns = now_ns();
  if (end) request->uploaded_ns = request->came_ns;
  if (progress == BALANCER_MORE) {
    request->stage = READING;
    keep_headers(request, &seen);
    return HEADERS_STOP;
  }
  return judge_request(filter, request, seen, request->came_ns) ? HEADERS_CONTINUE : HEADERS_STOP;
}

/* What came last of the body is read; what came before was. */
static enum balancer_progress feed(void *filter, struct request *request) {
  struct text few[MOST_CHUNKS], *chunks = few;
  size_t count = CALLBACK(http_get_body_chunks_size)(filter, RECEIVED_REQUEST_BODY);
  enum balancer_progress progress = request->reader.progress;
  if (count > MOST_CHUNKS && !(chunks = calloc(count, sizeof *chunks))) return progress;
  if (count && CALLBACK(http_get_body_chunks)(filter, RECEIVED_REQUEST_BODY, chunks))
    for (size_t i = 0; i < count && progress != BALANCER_REFUSED; i++) {
      request->ending.bytes_in += chunks[i].length;
      progress = balancer_reader_feed(&request->reader, chunks[i].ptr, chunks[i].length);
    }
  if (chunks != few) free(chunks);
  return progress;
}

HOOKED int HOOK(http_filter_request_body)(void *filter, const void *module, bool end) {
  struct request *request = (struct request *)module;
  if (end) request->uploaded_ns = now_ns();
  if (request->stage == OURS && request->reader.body == BALANCER_GRPC_BODY) {
    /* On its way already; a field that says otherwise than what was decided by must not arrive. */
    struct balancer_refusal refusal;
    struct seen none = {0};
    if (feed(filter, request) != BALANCER_REFUSED) {
      arrive(request);
      return BODY_CONTINUE;
    }
    /* Why stands in the reader. */
    struct balancer_headers headers = {header_of, &none};
    balancer_reader_finish(&request->reader, &request->names->of, headers, &refusal);
    answer_invalid(filter, request, &refusal);
    return BODY_STOP_AND_BUFFER;
  }
  if (request->stage == OURS) {
    request->ending.bytes_in += CALLBACK(http_get_body_size)(filter, RECEIVED_REQUEST_BODY);
    arrive(request);
  }
  if (request->stage != READING) return BODY_CONTINUE;
  enum balancer_progress progress = feed(filter, request);
  if (end) progress = balancer_reader_end(&request->reader);
  if (progress == BALANCER_MORE) return BODY_STOP_AND_BUFFER;
  struct header all[MOST_HEADERS];
  uint64_t read_ns = end ? request->uploaded_ns : now_ns();
  bool goes_on = judge_request(filter, request, kept_headers(filter, request, all), read_ns);
  return goes_on ? BODY_CONTINUE : BODY_STOP_AND_BUFFER;
}

HOOKED int HOOK(http_filter_request_trailers)(void *filter, const void *module) {
  struct request *request = (struct request *)module;
  request->uploaded_ns = now_ns();
  if (request->stage == OURS) arrive(request);
  if (request->stage != READING) return HEADERS_CONTINUE;
  balancer_reader_end(&request->reader);
  struct header all[MOST_HEADERS];
  bool goes_on = judge_request(filter, request, kept_headers(filter, request, all), request->uploaded_ns);
  return goes_on ? HEADERS_CONTINUE : HEADERS_STOP;
}

/* As `code` of balancer/extproc/responses.py. */
static int grpc_status_in(void *filter, int kind) {
  const int absent = -1;
  struct text found;
  if (!CALLBACK(http_get_header)(filter, kind, TEXT("grpc-status"), &found, 0, NULL) || !found.length ||
      found.length > 3)
    return absent;
  uint64_t number;
  return digits_of(found, &number) == found.length ? (int)number : absent;
}

/* Whether its end is recorded: also of those that end before they are decided. */
static bool is_recorded(const struct request *request) { return request->stage == OURS || request->stage == READING; }

static bool count_end(struct request *request) {
  const struct decision *decision = request->decision.answer == TAKEN ? &request->decision : NULL;
  return finish(request->source, request->attached, &request->features, decision, &request->ending);
}

static void keep_late(struct request *request) {
  pthread_mutex_lock(&late_mutex);
  request->next = late;
  late = request;
  lates++;
  pthread_mutex_unlock(&late_mutex);
}

static struct request *take_late(void) {
  if (!atomic_load_explicit(&lates, memory_order_relaxed)) return NULL;
  pthread_mutex_lock(&late_mutex);
  struct request *request = late;
  if (request) {
    late = request->next;
    lates--;
  }
  pthread_mutex_unlock(&late_mutex);
  return request;
}

/* Of an answer that is headers alone, which does not have it as an attribute yet. */
static int status_in_headers(void *filter) {
  struct text found = {NULL, 0};
  uint64_t status;
  if (!CALLBACK(http_get_header)(filter, RESPONSE_HEADERS, TEXT(":status"), &found, 0, NULL) || found.length != 3) return 0;
  return digits_of(found, &status) == 3 && status >= 100 ? (int)status : 0;
}

static void read_answer(struct request *request) {
  struct ending *ending = &request->ending;
  struct token_usage *answered = &ending->answered;
  *answered = answer_read(request->answer);
  if (!answered->output_tokens && !request->answer->streams && request->decision.answer == TAKEN)
    answered->output_tokens = (uint32_t)fmin((double)ending->bytes_out * request->decision.tokens_a_byte, BALANCER_MAX_PROMPT_TOKENS);
  if (!request->first_token_ns) return;
  ending->first_token_s = seconds_since(request->began_ns, request->first_token_ns);
  if (!request->answer->framed) {
    ending->answering_s = seconds_since(request->first_token_ns, request->last_byte_ns);
    return;
  }
  /* Its client may leave the stream open, and ask again on it. */
  ending->answering_s = seconds_since(request->first_token_ns, request->last_message_ns);
  ending->said_s = seconds_of(request->last_message_ns);
  ending->asked_again = balancer_reader_has_more(&request->reader);
}

static void conclude(void *filter, struct request *request) {
  if (request->stage == READING) {
    request->stage = OURS;
    request->features.kind = request->reader.features.kind;
    request->features.grpc = request->reader.features.grpc;
    request->features.port = request->reader.features.port;
  }
  struct ending *ending = &request->ending;
  struct text found = {NULL, 0};
  if (CALLBACK(http_filter_get_attribute_string)(filter, UPSTREAM_ADDRESS, &found) && found.length < ENDPOINT_BYTES)
    memcpy(ending->endpoint, found.ptr, found.length);
  found.length = 0;
  CALLBACK(http_filter_get_attribute_string)(filter, RESPONSE_CODE_DETAILS, &found);
  uint64_t attempts = 0, status = 0;
  /* Envoy has one for clients that left before any came, too. */
  if (request->first_byte_ns && !ending->http_status) {
    CALLBACK(http_filter_get_attribute_int)(filter, RESPONSE_CODE, &status);
    ending->http_status = status < 1000 ? (int)status : 0;
  }
  judge(ending, found, request->whole);
  CALLBACK(http_filter_get_attribute_int)(filter, ATTEMPT_COUNT, &attempts);
  ending->attempts = attempts < UINT_MAX ? (unsigned)attempts : UINT_MAX;
  /* An upload that takes long says nothing of the worker, nor does a client that takes long to read. */
  uint64_t began_ns = request->uploaded_ns > request->began_ns ? request->uploaded_ns : request->began_ns;
  uint64_t over_ns = request->unread_ns ? request->unread_ns : request->last_byte_ns;
  bool is_one = request->features.kind == BALANCER_INFERENCE || request->features.port == BALANCER_OPENAI_PORT;
  if (is_one && request->whole && over_ns > began_ns)
    ending->latency_s = seconds_of(over_ns - began_ns);
  if (request->first_byte_ns > began_ns) ending->first_byte_s = seconds_of(request->first_byte_ns - began_ns);
  if (request->answer) read_answer(request);
  for (struct request *before; (before = take_late());) {
    if (!count_end(before)) {
      keep_late(before);
      break;
    }
    let_go(before);
  }
  if (count_end(request)) request->stage = ENDED;
}

/* All of the worker's answer is here: the client may take its time for it. gRPC's status comes last; with the headers it comes
   in an answer without a message. */
static void ended(void *filter, struct request *request, bool trailers) {
  int *status = &request->ending.grpc_status;
  request->last_byte_ns = now_ns();
  request->whole = true;
  if (trailers) *status = grpc_status_in(filter, RESPONSE_TRAILERS);
  if (*status < 0) *status = grpc_status_in(filter, RESPONSE_HEADERS);
  conclude(filter, request);
}

/* Envoy reads no more of an answer that its client does not take. Where that is one to one request, the worker was done with it
   when its answer began. A stream may still be worked on. */
static void stop_waiting(struct request *request) {
  if (request->stage != OURS || request->decision.answer != TAKEN || !request->first_byte_ns || request->unread_ns) return;
  if (request->features.kind == BALANCER_STREAM) {
    place_waits(request->attached, &request->decision);
    return;
  }
  request->unread_ns = now_ns();
  place_leave(request->source, request->attached, &request->decision);
}

HOOKED void HOOK(http_filter_downstream_above_write_buffer_high_watermark)(void *filter, const void *module) {
  (void)filter;
  struct request *request = (struct request *)module;
  if (!request->unread++) stop_waiting(request);
}

HOOKED void HOOK(http_filter_downstream_below_write_buffer_low_watermark)(void *filter, const void *module) {
  (void)filter;
  struct request *request = (struct request *)module;
  if (!request->unread || --request->unread) return;
  if (request->stage != OURS || request->decision.answer != TAKEN || request->features.kind != BALANCER_STREAM) return;
  place_resume(request->source, request->attached, &request->features, &request->decision);
}

static void await_answer(void *filter, struct request *request) {
  struct text kind = {NULL, 0};
  CALLBACK(http_get_header)(filter, RESPONSE_HEADERS, TEXT("content-type"), &kind, 0, NULL);
  /* A second head comes where Envoy answers in a worker's place. */
  if (request->answer || (request->answer = malloc(sizeof *request->answer)))
    answer_start(request->answer, request->features.grpc || (kind.ptr && begins(kind, "text/event-stream")),
                 request->features.grpc);
}

/* More of the answer of a language model. */
static void take_answer(void *filter, struct request *request) {
  struct text few[MOST_CHUNKS], *chunks = few;
  size_t count = CALLBACK(http_get_body_chunks_size)(filter, RECEIVED_RESPONSE_BODY);
  if (count > MOST_CHUNKS && !(chunks = calloc(count, sizeof *chunks))) return;
  if (count && CALLBACK(http_get_body_chunks)(filter, RECEIVED_RESPONSE_BODY, chunks))
    for (size_t i = 0; i < count; i++) answer_feed(request->answer, chunks[i]);
  if (chunks != few) free(chunks);
  request->last_message_ns = now_ns();
  if (request->first_token_ns || request->features.kind != BALANCER_STREAM || request->decision.answer != TAKEN ||
      !request->answer->bytes || status_in_headers(filter) != 200)
    return;
  request->first_token_ns = request->last_message_ns;
  place_begins(request->source, request->attached, &request->decision);
}

HOOKED int HOOK(http_filter_response_headers)(void *filter, const void *module, bool end) {
  struct request *request = (struct request *)module;
  if (!is_recorded(request)) return HEADERS_CONTINUE;
  request->first_byte_ns = now_ns();
  if (request->unread) stop_waiting(request);
  if (request->features.prompt && !end) await_answer(filter, request);
  if (end) {
    request->ending.http_status = status_in_headers(filter);
    ended(filter, request, false);
  }
  return HEADERS_CONTINUE;
}

HOOKED int HOOK(http_filter_response_body)(void *filter, const void *module, bool end) {
  struct request *request = (struct request *)module;
  if (!is_recorded(request)) return BODY_CONTINUE;
  request->ending.bytes_out += CALLBACK(http_get_body_size)(filter, RECEIVED_RESPONSE_BODY);
  if (request->answer) take_answer(filter, request);
  if (end) ended(filter, request, false);
  return BODY_CONTINUE;
}

HOOKED int HOOK(http_filter_response_trailers)(void *filter, const void *module) {
  struct request *request = (struct request *)module;
  if (!is_recorded(request)) return HEADERS_CONTINUE;
  ended(filter, request, true);
  return HEADERS_CONTINUE;
}

/* Nothing more will come, though the answer may not have been whole. */
HOOKED void HOOK(http_filter_stream_complete)(void *filter, const void *module) {
  struct request *request = (struct request *)module;
  if (is_recorded(request)) conclude(filter, request);
}

HOOKED void HOOK(http_filter_destroy)(const void *module) {
  struct request *request = (struct request *)module;
  free(request->answer);
  request->answer = NULL;
  fallbacks_forget(request);
  balancer_reader_release(&request->reader);
  if (request->stage != OURS || lates >= MOST_LATE) {
    let_go(request);
    return;
  }
  keep_late(request);
}
