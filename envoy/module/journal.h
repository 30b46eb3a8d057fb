/* What decisions made here rested on, and how they ended, for the balancer's decision log: file `journal` in its folder,
   there while it keeps one.

   A ring of records, written by whoever has the lock and read by the balancer without it. Nothing is written over: what
   finds no room is counted, and dropped. See balancer/native/journal.py, which reads it. */
#ifndef MODULE_JOURNAL_H
#define MODULE_JOURNAL_H

#include "kernel.h"
#include "state.h"
#include "abi.h"

#define JOURNAL_MAGIC UINT64_C(0x6c616e72756f6a)

struct journal {
  uint64_t magic, bytes;
  char stamp[16], shared[16];
  double share; /* of the decisions that are recorded, chosen by their numbers */
  _Alignas(64) _Atomic uint64_t written; /* bytes, ever; by who has the lock */
  _Atomic uint64_t dropped;              /* records, ever */
  _Alignas(64) _Atomic uint64_t read;    /* bytes, ever; by the balancer */
  _Alignas(64) char ring[JOURNAL_RING_BYTES];
};

/* Of this process. */
struct writer {
  struct journal *journal; /* null: there is no log */
  uint64_t inode;
  double share;
  uint64_t at; /* where the next record goes */
  struct request_record *open; /* of the decision being made; null: it is not recorded */
  uint64_t open_bytes;
  bool lacks_room; /* for that decision */
  double *shares;    /* its */
  uint8_t *eligible; /* its */
  const double *seen[JOURNAL_SEEN], *answer; /* in the fleet_state */
};

struct attached;
struct features;
struct decision;

/* With the lock held, all of these. */

/* Map the file of that folder, where it is not mapped yet; false: it cannot be used. */
bool journal_open(struct writer *writer, int folder);
void journal_close(struct writer *writer);
/* The fleet_state lie elsewhere; false: their arrays are not within them. */
bool journal_bind(struct attached *attached);

/* Records are seen by the balancer when they are committed; those written since the last start are otherwise dropped. */
void journal_start(struct writer *writer);
void journal_commit(struct writer *writer);

/* Before the kernel is called, as it counts in, and when it has answered with a row, or -1. */
void journal_decision(struct attached *attached, const struct features *features, const struct decision *decision);
void journal_answer(struct attached *attached, const struct features *features, int64_t row, const uint8_t *eligible);
/* In place of an answer. */
void journal_refusal(struct attached *attached, const struct features *features, const struct decision *decision);

void journal_end(struct writer *writer, const struct ended_record *outcome);

#endif
