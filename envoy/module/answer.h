/* What the answer of a language model says of its tokens, read as it passes: as AnswerReader of
   balancer/extproc/prompts.py. */
#ifndef MODULE_ANSWER_H
#define MODULE_ANSWER_H

#include "text.h"

enum { ANSWER_KEPT_BYTES = 8192 };

/* 0: it does not say. */
struct token_usage {
  uint32_t prompt_tokens, cached_tokens, output_tokens;
};

struct answer_reader {
  uint64_t bytes;
  uint32_t events, matched; /* of a stream; how far the next one's mark has come, or the head of gRPC's next message */
  uint32_t left;            /* bytes of gRPC's message at hand, or of which there will be so many */
  bool streams, framed;     /* framed: by gRPC */
  char last[ANSWER_KEPT_BYTES]; /* a ring */
};

void answer_start(struct answer_reader *answer, bool streams, bool framed);
void answer_feed(struct answer_reader *answer, struct text data);
struct token_usage answer_read(const struct answer_reader *answer);

#endif
