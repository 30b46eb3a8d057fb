/* One request on its way through Envoy. */
#ifndef MODULE_FILTER_H
#define MODULE_FILTER_H

#include "decide.h"

enum { MOST_CHUNKS = 64, MOST_HEADERS = 128, MOST_KEPT = 12, KEPT_BYTES = 1024 };

enum stage {
  UNSEEN,  /* Envoy may end it before it is seen here */
  READING, /* the first bytes of the body are awaited */
  PASSED,  /* the balancer is asked, or nobody has to be */
  OURS,    /* decided here, or left to Envoy here */
  ENDED
};

/* Headers that are looked at when the body is there. */
struct kept {
  bool whole; /* none of them is missing */
  size_t count;
  uint64_t bits; /* `name_bit` of each */
  struct header all[MOST_KEPT];
  char texts[KEPT_BYTES];
};

struct request {
  struct source *source;
  struct attached *attached;
  const struct names *names; /* in force when its headers came */
  enum stage stage;
  uint64_t came_ns, began_ns, uploaded_ns, first_byte_ns, last_byte_ns;
  uint64_t unread_ns; /* when the client was first found not to take an answer that was there */
  bool whole;         /* the response came to its end */
  unsigned unread;    /* of Envoy's buffers towards the client, that are full */
  const char *path;      /* where Envoy keeps it */
  struct text fallbacks; /* that were not tried yet */
  bool among;            /* any of them may be chosen, and nobody else */
  struct request *beside;
  struct answer_reader *answer; /* of a language model, as far as it came; null: none */
  uint64_t first_token_ns, last_message_ns; /* of that answer */
  struct ending ending;
  struct features features;
  struct decision decision;
  struct balancer_reader reader;
  struct kept kept;
  struct request *next;
};

/* The name of one that Envoy lacks; null: all are there. */
const char *missing_callback(void);

/* For the attempts after the first; until it is forgotten, on the same thread. */
void fallbacks_keep(struct request *request, struct text fallbacks);
void fallbacks_forget(struct request *request);

/* Writes the version that was drawn for it into a request that has not gone on yet. */
void version_write(void *filter, struct request *request);

#endif
