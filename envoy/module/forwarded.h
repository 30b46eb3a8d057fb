/* Models whose inferences the balancer forwards: their requests are not decided here. */
#ifndef MODULE_FORWARDED_H
#define MODULE_FORWARDED_H

#include "abi.h"
#include "shared.h"

struct forwarded {
  size_t count;
  struct text names[MOST_FORWARDED]; /* in order */
};

/* From "LENGTH:NAME", one after the other; false: it is no such list, has too many, or there is no memory. The names are
   copied, and stay for as long as the process. */
bool forwarded_read(struct forwarded *forwarded, struct text list);
bool forwarded_has(const struct forwarded *forwarded, struct text model);

#endif
