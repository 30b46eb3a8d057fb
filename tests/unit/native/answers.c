/* answers HOW PIECE: reads an answer from standard input in pieces of so many bytes, and prints its tokens. HOW: 0: whole, 1:
   events, 2: gRPC's messages. */
#include "answer.h"

#include <stdio.h>
#include <stdlib.h>

int main(int count, char **arguments) {
  if (count != 3) return 2;
  struct answer_reader *answer = malloc(sizeof *answer);
  size_t piece = (size_t)atol(arguments[2]), length;
  if (!answer) return 2;
  memset(answer, 0xaa, sizeof *answer); /* nothing may be taken for granted */
  answer_start(answer, *arguments[1] > '0', *arguments[1] == '2');
  /* Of its own size, so that a sanitizer sees who reads beyond it. */
  for (char *data; (data = malloc(piece)) && ((length = fread(data, 1, piece, stdin)) || (free(data), 0)); free(data))
    answer_feed(answer, (struct text){data, length});
  struct token_usage found = answer_read(answer);
  printf("%u %u %u\n", found.prompt_tokens, found.cached_tokens, found.output_tokens);
  free(answer);
  return 0;
}
