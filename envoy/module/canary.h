/* Decisions where it is not always the policy in force that decides: guard, rollout and shadow of balancer/scheduler/canary.

   The balancer says who decides which numbers, until when, and what it wants to be told. What would change that, or is
   for the shadow, is left to the balancer. With the lock held, all of it. */
#ifndef MODULE_CANARY_H
#define MODULE_CANARY_H

#include "decide.h"

/* Finds who decides; false: the balancer is to, under the number that `out` has. */
bool chosen(struct attached *attached, const struct ask *ask, struct decision *out);

/* The decision was made, and took so long; `taken`: a worker has the request, otherwise it is shed. */
void tell_decided(struct attached *attached, const struct ask *ask, struct decision *out, double seconds, bool taken);

/* A request whose decision was told of has ended. */
void tell_ended(struct attached *attached, const struct decision *decision, const struct ending *ending);

#endif
