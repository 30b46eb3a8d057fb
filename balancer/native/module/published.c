#define _GNU_SOURCE
#include "published.h"

#include <math.h>
#include <string.h>

/* Older ones are not used: the balancer computes anew some 100 times a second. */
#define OLD_S 0.1
/* Beyond it a weight is none, so that sums are finite. */
#define MOST_WEIGHT 1e15
/* In flight at each worker beyond the last level, at most, before the balancer has made another. */
enum { MOST_BEYOND = 1024 };

static bool is_for(const struct table *table, const struct ask *ask) {
  uint64_t reads = table->reads;
  if (reads & READS_ROWS && table->rows != ask->rows) return false;
  if (reads & READS_PRIORITY && table->priority != ask->priority) return false;
  if (reads & READS_KEY && ask->keyed) return false;
  if (reads & READS_DEADLINE && isfinite(ask->deadline_s)) return false;
  return !(reads & READS_TENANT && ask->tenant.length);
}

struct table *published_for(struct attached *attached, const struct entry *entry, const struct ask *ask,
                            const struct decision *decision) {
  for (int place = 0; place < TABLES; place++) {
    struct table *table = &attached->control->tables[place];
    if (table->hash != entry->hash || !table->levels || table->levels > LEVELS) continue;
    if (table->decider != (uint64_t)decision->decider) continue;
    if (table->column != entry->column || table->generation != attached->generation) continue;
    if (table->workers != attached->workers || table->workers > MOST_PUBLISHED) continue;
    if (fabs(decision->at_s - table->at_s) <= OLD_S && is_for(table, ask)) return table;
  }
  return NULL;
}

/* What workers lack of that level, and of as many more each; returns the sum. */
static double lack(struct attached *attached, const struct table *table, uint64_t level, double more) {
  double total = 0;
  for (uint64_t w = 0; w < attached->workers; w++) {
    double target = attached->mask[w] ? table->targets[level][w] : 0;
    double weight = target > 0 ? target + more - attached->in_flight[w] : 0;
    total += attached->weights[w] = weight > 0 && weight < MOST_WEIGHT ? weight : 0;
  }
  return total;
}

/* The answer as it is. */
static double take(struct attached *attached, const struct table *table) {
  double total = 0;
  for (uint64_t w = 0; w < attached->workers; w++) {
    double weight = attached->mask[w] ? table->targets[0][w] : 0;
    total += attached->weights[w] = weight > 0 && weight < MOST_WEIGHT ? weight : 0;
  }
  return total;
}

bool published_weigh(struct attached *attached, const struct table *table) {
  /* Numbers that were looked at must be those that are used, whatever another process writes meanwhile. */
  uint64_t levels = PEEK(table->levels), level = 0;
  double more = 0;
  if (!levels || levels > LEVELS || attached->workers > MOST_PUBLISHED) return false;
  if (table->fixed) return take(attached, table) > 0;
  for (uint64_t w = 0; w < attached->workers; w++)
    if (attached->mask[w]) more += attached->in_flight[w] - table->base[w];
  while (level + 1 < levels && more >= table->upto[level]) level++;
  for (; level + 1 < levels; level++)
    if (lack(attached, table, level, 0) > 0) return true;
  for (double beyond = 0; beyond <= MOST_BEYOND; beyond = beyond > 0 ? 2 * beyond : 1)
    if (lack(attached, table, level, beyond) > 0) return true;
  return false;
}

/* The balancer's side, called from Python with the lock held. */

EXPORTED void balancer_state_table_clear(struct control *control) {
  for (int place = 0; place < TABLES; place++) control->tables[place].levels = 0;
}

/* How many it decided, ever. */
EXPORTED uint64_t balancer_state_table_sent(const struct control *control, uint64_t place) {
  return place < TABLES ? control->tables[place].sent : 0;
}

/* All but that; of the numbers those that hold. */
EXPORTED void balancer_state_table_put(struct control *control, uint64_t place, const struct table *from) {
  if (place >= TABLES || from->levels > LEVELS || from->workers > MOST_PUBLISHED) return;
  struct table *to = &control->tables[place];
  memcpy(to, from, offsetof(struct table, targets));
  for (uint64_t level = 0; level < from->levels; level++)
    memcpy(to->targets[level], from->targets[level], sizeof **to->targets * from->workers);
  memcpy(to->base, from->base, sizeof *to->base * from->workers);
}
