/* Decisions by probabilities that the balancer published, where its policy is not compiled: see balancer/front/tables.py.

   A table says how many requests the policy would have in flight at each worker, level by level, if the next requests
   came at once. What is sent and what ends meanwhile is known exactly, so draws are by what each worker lacks of that.
   With the lock held, all of it. */
#ifndef MODULE_PUBLISHED_H
#define MODULE_PUBLISHED_H

#include "decide.h"

/* The table for that request, of who is to decide it; null: there is none, or it is too old. */
struct table *published_for(struct attached *attached, const struct entry *entry, const struct ask *ask,
                            const struct decision *decision);

/* Leaves in `attached->weights` what those in `attached->mask` lack; false: nothing. */
bool published_weigh(struct attached *attached, const struct table *table);

#endif
