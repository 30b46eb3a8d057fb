/* What the way a request ended says of its worker. */
#define _GNU_SOURCE
#include "decide.h"

#include <string.h>

static bool contains(struct text text, const char *part) {
  return text.length && memmem(text.ptr, text.length, part, strlen(part));
}

struct verdict {
  int first, last;
  struct judged judged;
};

static struct judged verdict_in(const struct verdict *table, size_t count, int status) {
  for (size_t i = 0; i < count; i++)
    if (table[i].first <= status && status <= table[i].last) return table[i].judged;
  return (struct judged){false, VOID_CLIENT};
}

static struct judged by_status(int grpc_status, int http_status) {
  static const struct verdict grpc[] = {VERDICTS_OF_GRPC}, http[] = {VERDICTS_OF_HTTP};
  if (grpc_status >= 0) return verdict_in(grpc, sizeof grpc / sizeof *grpc, grpc_status);
  return verdict_in(http, sizeof http / sizeof *http, http_status);
}

/* What Envoy's response code details begin with, or have in them, where not the worker's answer ended the request; in
   place of the flags that `verdict_of` of balancer/extproc/outcomes.py goes by. */
static const struct cause {
  const char *words;
  bool within;
  enum aborted by;
} causes[] = {
  {"downstream", false, BY_CLIENT},
  {"http2.remote", false, BY_CLIENT},
  {"overflow", true, BY_GATEWAY},
  {"overload", false, BY_GATEWAY},
  {"upstream_reset", false, BY_WORKER},
  {"timeout", true, BY_DEADLINE},
  {"max_stream_duration", true, BY_DEADLINE},
  {"duration_", false, BY_DEADLINE},
  {"upstream_response", false, BY_WORKER},
};

void judge(struct ending *ending, struct text details, bool complete) {
  static const struct verdict aborted[] = {VERDICTS_OF_ABORTED};
  ending->aborted = complete ? BY_NOBODY : BY_CLIENT;
  bool plain = complete && equals(details, "via_upstream"); /* nearly all */
  for (const struct cause *cause = causes; !plain && cause < causes + sizeof causes / sizeof *causes; cause++)
    if (cause->within ? contains(details, cause->words) : begins(details, cause->words)) {
      ending->aborted = cause->by;
      break;
    }
  if (!ending->endpoint[0])
    ending->judged = (struct judged){false, VOID_CLIENT};
  else if (ending->aborted == BY_NOBODY)
    ending->judged = by_status(ending->grpc_status, ending->http_status);
  else
    ending->judged = verdict_in(aborted, sizeof aborted / sizeof *aborted, (int)ending->aborted);
}
