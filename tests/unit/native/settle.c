/* Decides as an Envoy would that shares a balancer's folder, at the times it is told.

   settle KERNEL.so FOLDER: reads lines from standard input. `ask NOW_NS KIND GRPC SEQUENCE KEYED KEY DEADLINE PRIORITY
   ROWS MODEL VERSION PROMPT BYTES` (a dash: none) writes what was decided: the prompt is that word, again and again, up to so
   many bytes. `end NOW_NS NTH LATENCY GRPC_STATUS ENDPOINT TOKENS` ends the request of the NTH line, counted from 0; of
   its answer `token NOW_NS NTH` is the first token. `sync` writes a line, when all before it is done. From `mute` on the balancer gives
   no sign of life. */
#define _GNU_SOURCE
#include "decide.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

enum { MOST_ASKED = 1 << 15, MOST_TEXT = 256 };

static uint64_t now;
uint64_t __wrap_now_ns(void) { return now; }
uint64_t __wrap_about_now_ns(void) { return now; }

static struct text text_of(const char *word) {
  return strcmp(word, "-") ? (struct text){word, strlen(word)} : (struct text){"", 0};
}

static void end(struct source *source, const struct features *asks, const struct decision *decisions,
                struct attached *const *states) {
  unsigned nth;
  struct ending ending = {.http_status = 200, .first_byte_s = 0};
  char endpoint[ENDPOINT_BYTES];
  if (scanf("%" SCNu64 " %u %lf %d %63s %" SCNu32, &now, &nth, &ending.latency_s, &ending.grpc_status, endpoint,
            &ending.answered.output_tokens) != 6)
    exit(2);
  if (nth >= MOST_ASKED || !states[nth]) exit(2);
  if (strcmp(endpoint, "-")) memcpy(ending.endpoint, endpoint, sizeof endpoint);
  atomic_store(&states[nth]->control->heartbeat_ns, now);
  judge(&ending, TEXT("via_upstream"), true);
  const struct decision *decision = decisions[nth].answer == TAKEN ? &decisions[nth] : NULL;
  if (!finish(source, states[nth], &asks[nth], decision, &ending)) exit(4);
}

static void token(struct source *source, struct decision *decisions, struct attached *const *states) {
  unsigned nth;
  if (scanf("%" SCNu64 " %u", &now, &nth) != 2 || nth >= MOST_ASKED || !states[nth]) exit(2);
  atomic_store(&states[nth]->control->heartbeat_ns, now);
  place_begins(source, states[nth], &decisions[nth]);
}

static const struct balancer_prompt *prompt_of(const char *word, uint64_t bytes, struct text model) {
  struct balancer_prompt *prompt = calloc(1, sizeof *prompt);
  size_t length = strlen(word);
  if (!prompt) exit(2);
  balancer_prompt_start(prompt);
  for (uint64_t done = 0; done < bytes; done += length)
    balancer_prompt_add(prompt, (const uint8_t *)word, bytes - done < length ? (size_t)(bytes - done) : length);
  balancer_prompt_end(prompt, model, TEXT(""));
  return prompt;
}

int main(int count, char **arguments) {
  static struct features asks[MOST_ASKED];
  static struct decision decisions[MOST_ASKED];
  static struct attached *states[MOST_ASKED];
  static char names[MOST_ASKED][2][MOST_TEXT + 1];
  char what[8];
  const char *why = NULL;
  if (count != 3) return 2;
  struct source *source = source_new(arguments[1], arguments[2], &why);
  if (!source) {
    fprintf(stderr, "%s\n", why);
    return 3;
  }
  setvbuf(stdout, NULL, _IOLBF, 0);
  bool mute = false;
  for (unsigned nth = 0; scanf("%7s", what) == 1;) {
    if (!strcmp(what, "sync")) {
      printf("done\n");
      continue;
    }
    if (!strcmp(what, "mute")) {
      mute = true;
      continue;
    }
    if (!strcmp(what, "end")) {
      end(source, asks, decisions, states);
      continue;
    }
    if (!strcmp(what, "token")) {
      token(source, decisions, states);
      continue;
    }
    int kind, grpc, sequence, keyed;
    char word[MOST_TEXT + 1];
    struct features *features = &asks[nth];
    char *model = names[nth][0], *version = names[nth][1];
    if (scanf("%" SCNu64 " %d %d %d %d %" SCNu64 " %lf %lf %lf %256s %256s %256s %" SCNu64, &now, &kind, &grpc, &sequence,
              &keyed, &features->key, &features->deadline_s, &features->priority, &features->rows, model, version, word,
              &features->body_bytes) != 13)
      return 2;
    features->kind = (enum balancer_kind)kind;
    features->grpc = grpc;
    features->port = grpc ? BALANCER_GRPC_PORT : BALANCER_HTTP_PORT;
    features->sequence = sequence;
    features->keyed = keyed;
    features->model = text_of(model);
    features->version = text_of(version);
    if (text_of(word).length) features->prompt = prompt_of(word, features->body_bytes, features->model);
    struct attached *attached = states[nth] = source_take(source);
    if (!attached) {
      printf("none\n");
      continue;
    }
    atomic_store(&attached->control->heartbeat_ns, mute ? 0 : now);
    struct decision *decision = &decisions[nth];
    decide(source, attached, features, decision);
    printf("%d %" PRIu64 " %u %u %a %.*s\n", decision->answer, decision->number,
           decision->answer == TURNED_AWAY ? decision->http_status : 0,
           decision->answer == TURNED_AWAY ? decision->grpc_status : 0,
           decision->answer == TAKEN ? decision->propensity : 0.0, (int)decision->length, decision->words);
    if (++nth == MOST_ASKED) break;
  }
  return 0;
}
