#define _GNU_SOURCE
#include "answer.h"

static const char MARK[] = "data:";
enum { MOST_DIGITS = 9, FRAME_BYTES = 5 };

void answer_start(struct answer_reader *answer, bool streams, bool framed) {
  answer->bytes = 0;
  answer->events = answer->matched = answer->left = 0;
  answer->streams = streams;
  answer->framed = framed;
}

/* A message is there once its head is: whether it is compressed, and its length. */
static void count_messages(struct answer_reader *answer, struct text data) {
  for (size_t i = 0; i < data.length;) {
    if (answer->matched == FRAME_BYTES) {
      size_t left = data.length - i, taken = answer->left < left ? answer->left : left;
      answer->left -= (uint32_t)taken;
      i += taken;
      if (!answer->left) answer->matched = 0;
      continue;
    }
    answer->left = answer->matched ? answer->left << 8 | (uint8_t)data.ptr[i] : 0;
    i++;
    if (++answer->matched < FRAME_BYTES) continue;
    answer->events++;
    if (!answer->left) answer->matched = 0;
  }
}

static void count_events(struct answer_reader *answer, struct text data) {
  for (size_t i = 0; i < data.length; i++) {
    if (!answer->matched) {
      const char *next = memchr(data.ptr + i, *MARK, data.length - i);
      if (!next) return;
      i = (size_t)(next - data.ptr);
    }
    /* Its first letter is none of the others. */
    if (data.ptr[i] == MARK[answer->matched]) answer->matched++;
    else answer->matched = data.ptr[i] == *MARK;
    if (answer->matched < sizeof MARK - 1) continue;
    answer->matched = 0;
    answer->events++;
  }
}

void answer_feed(struct answer_reader *answer, struct text data) {
  if (answer->framed) count_messages(answer, data);
  else if (answer->streams) count_events(answer, data);
  if (data.length > ANSWER_KEPT_BYTES) {
    size_t skipped = data.length - ANSWER_KEPT_BYTES;
    answer->bytes += skipped;
    data = (struct text){data.ptr + skipped, ANSWER_KEPT_BYTES};
  }
  size_t at = (size_t)(answer->bytes % ANSWER_KEPT_BYTES), first = ANSWER_KEPT_BYTES - at;
  if (first > data.length) first = data.length;
  memcpy(answer->last + at, data.ptr, first);
  memcpy(answer->last, data.ptr + first, data.length - first);
  answer->bytes += data.length;
}

static bool is_space(char byte) { return byte == ' ' || (byte >= '\t' && byte <= '\r'); }

static bool is_of_word(char byte) {
  return (byte >= 'a' && byte <= 'z') || (byte >= 'A' && byte <= 'Z') || (byte >= '0' && byte <= '9') || byte == '_';
}

/* The number behind the last such key, quotes and all; 0: there is none. */
static uint32_t number_at(struct text text, struct text key) {
  uint32_t found = 0;
  const char *end = text.ptr + text.length, *at = text.ptr;
  while ((at = memmem(at, (size_t)(end - at), key.ptr, key.length))) {
    at += key.length;
    const char *value = at;
    while (value < end && is_space(*value)) value++;
    if (value == end || *value++ != ':') continue;
    while (value < end && is_space(*value)) value++;
    uint64_t number;
    size_t digits = digits_of((struct text){value, (size_t)(end - value)}, &number);
    bool goes_on = value + digits < end && is_of_word(value[digits]);
    if (digits && digits <= MOST_DIGITS && !goes_on) found = (uint32_t)number;
  }
  return found;
}

struct token_usage answer_read(const struct answer_reader *answer) {
  if (answer->framed)
    return (struct token_usage){.output_tokens = answer->events > BALANCER_MAX_PROMPT_TOKENS ? 0 : answer->events};
  char ending[ANSWER_KEPT_BYTES];
  struct text text = {ending, answer->bytes < ANSWER_KEPT_BYTES ? (size_t)answer->bytes : ANSWER_KEPT_BYTES};
  size_t at = text.length < ANSWER_KEPT_BYTES ? 0 : (size_t)(answer->bytes % ANSWER_KEPT_BYTES);
  memcpy(ending, answer->last + at, text.length - at);
  memcpy(ending + text.length - at, answer->last, at);
  struct token_usage found = {number_at(text, TEXT("\"prompt_tokens\"")), number_at(text, TEXT("\"cached_tokens\"")),
                           number_at(text, TEXT("\"completion_tokens\""))};
  uint32_t events = answer->events;
  if (events && memmem(text.ptr, text.length, "[DONE]", 6)) events--;
  if (!found.output_tokens) found.output_tokens = events;
  if (found.prompt_tokens > BALANCER_MAX_PROMPT_TOKENS) found.prompt_tokens = 0;
  if (found.output_tokens > BALANCER_MAX_PROMPT_TOKENS) found.output_tokens = 0;
  if (found.cached_tokens > found.prompt_tokens) found.cached_tokens = found.prompt_tokens;
  return found;
}
