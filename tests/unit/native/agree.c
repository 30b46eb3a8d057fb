/* Writes what the module says of statuses, refusals and numbers' draws. */
#include "shared.h"
#include "text.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

struct judged {
  bool ok;
  enum void_kind void_kind;
};

struct verdict {
  int first, last;
  struct judged judged;
};

#define SHOWN(text) (int)(text).length, (text).ptr

static void of(const char *what, const struct verdict *table, size_t count) {
  for (size_t i = 0; i < count; i++)
    for (int status = table[i].first; status <= table[i].last; status++)
      printf("%s %d %d %d\n", what, status, table[i].judged.ok, table[i].judged.void_kind);
}

static void log_warning(int http, int grpc, const char *words, ...) {
  va_list arguments;
  va_start(arguments, words);
  printf("say %d %d ", http, grpc);
  vprintf(words, arguments);
  va_end(arguments);
  printf("\n");
}

int main(void) {
  static const struct verdict grpc[] = {VERDICTS_OF_GRPC}, http[] = {VERDICTS_OF_HTTP};
  of("grpc", grpc, sizeof grpc / sizeof *grpc);
  of("http", http, sizeof http / sizeof *http);
  struct text model = {"m", 1}, quoted = {"'m'", 3}, other = {"v", 1};
  log_warning(SAY_UNKNOWN(model));
  log_warning(SAY_UNKNOWN_VERSION(model, other));
  log_warning(SAY_NOBODY(quoted));
  log_warning(SAY_FULL(quoted, 2.5));
  log_warning(SAY_LATE(quoted, 12.5, 1234.5));
  log_warning(SAY_SHED(other, quoted));
  for (unsigned number = 0; number < 2000; number++) printf("draw %u %a -\n", number, balancer_draw(number));
  return 0;
}
