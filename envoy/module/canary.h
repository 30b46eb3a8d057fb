/* Decisions where it is not always the policy in force that decides: guard, rollout and shadow of balancer/scheduler/canary.

   The balancer says who decides which numbers, until when, and which decisions it wants reported. What would change that,
   or is for the shadow, is left to the balancer. With the lock held, all of it. */
#ifndef MODULE_CANARY_H
#define MODULE_CANARY_H

#include "decide.h"

/* Finds who decides; false: the balancer is to, under the number that `out` has. */
bool select_decider(struct attached *attached, const struct features *features, struct decision *out);

/* The decision was made, and took so long; `taken`: a worker has the request, otherwise it is shed. */
void report_decision(struct attached *attached, const struct features *features, struct decision *out, double seconds,
                     bool taken);

/* A request whose decision was reported has ended. */
void report_end(struct attached *attached, const struct decision *decision, const struct ending *ending);

#endif
