#define _GNU_SOURCE
#include "filter.h"

#include <string.h>

/* What the clusters of workers ask where no worker is set: of an attempt after the first, and of a request that Envoy
   places by itself. Each of Envoy's threads has its own requests, so nothing here is shared. */

enum { BUCKETS_LOG2 = 10, FIRST_PRIORITY = 0 };

/* Those with fallbacks, by the address of their path's text: Envoy shows a cluster no more of a request than its
   headers, which stay where they are while it lives. */
static _Thread_local struct request *kept[1 << BUCKETS_LOG2];
static _Thread_local uint64_t draws;

static struct request **bucket_of(const char *path) {
  uint64_t mixed = (uint64_t)(uintptr_t)path * UINT64_C(0x9e3779b97f4a7c15);
  return &kept[mixed >> (64 - BUCKETS_LOG2)];
}

void fallbacks_keep(struct request *request, struct text fallbacks) {
  if (!request->path) return;
  struct request **bucket = bucket_of(request->path);
  request->fallbacks = fallbacks;
  request->beside = *bucket;
  *bucket = request;
}

void fallbacks_forget(struct request *request) {
  if (!request->fallbacks.ptr) return;
  struct request **at = bucket_of(request->path);
  while (*at && *at != request) at = &(*at)->beside;
  if (*at) *at = request->beside;
  request->fallbacks = (struct text){NULL, 0};
}

static struct request *request_of(void *context) {
  struct text path;
  if (!context || !CALLBACK(lb_context_get_downstream_header)(context, TEXT(":path"), &path, 0, NULL)) return NULL;
  struct request *request = *bucket_of(path.ptr);
  while (request && request->path != path.ptr) request = request->beside;
  return request;
}

static struct text next_fallback(struct request *request) {
  struct text *left = &request->fallbacks;
  const char *comma = memchr(left->ptr, ',', left->length);
  struct text next = {left->ptr, comma ? (size_t)(comma - left->ptr) : left->length};
  size_t used = comma ? next.length + 1 : next.length;
  *left = (struct text){left->ptr + used, left->length - used};
  return next;
}

/* False: no healthy host has that address. */
static bool is_healthy(void *cluster, struct text address, uint32_t *index) {
  size_t count = CALLBACK(lb_get_healthy_hosts_count)(cluster, FIRST_PRIORITY);
  for (size_t i = 0; i < count; i++) {
    struct text found;
    if (!CALLBACK(lb_get_healthy_host_address)(cluster, FIRST_PRIORITY, i, &found) || !same(found, address)) continue;
    *index = (uint32_t)i;
    return true;
  }
  return false;
}

/* A healthy host's index among all, which are in one order: it is rarely far. */
static size_t among_all(void *cluster, size_t healthy) {
  struct text address, found;
  if (!CALLBACK(lb_get_healthy_host_address)(cluster, FIRST_PRIORITY, healthy, &address)) return healthy;
  size_t count = CALLBACK(lb_get_hosts_count)(cluster, FIRST_PRIORITY);
  for (size_t i = healthy; i < count; i++)
    if (CALLBACK(lb_get_host_address)(cluster, FIRST_PRIORITY, i, &found) && same(found, address)) return i;
  return healthy;
}

static uint64_t active(void *cluster, size_t healthy) {
  return CALLBACK(lb_get_host_stat)(cluster, FIRST_PRIORITY, among_all(cluster, healthy), REQUESTS_ACTIVE);
}

/* Below `count`. */
static size_t draw(size_t count) {
  if (!draws) draws = now_ns() ^ (uint64_t)(uintptr_t)&draws;
  return (size_t)(balancer_mix(draws++) % count);
}

/* The one of two with fewer requests of this Envoy's, as Envoy's own policy of this name has it; the next ones after it
   while those were tried. */
static bool least_request(void *cluster, void *context, uint32_t *index) {
  size_t count = CALLBACK(lb_get_healthy_hosts_count)(cluster, FIRST_PRIORITY);
  if (!count) return false;
  size_t one = draw(count), other = count > 1 ? (one + 1 + draw(count - 1)) % count : one;
  if (active(cluster, other) < active(cluster, one)) one = other;
  uint32_t more = context ? CALLBACK(lb_context_get_host_selection_retry_count)(context) : 0;
  for (; more; more--) {
    size_t host = among_all(cluster, one);
    if (!CALLBACK(lb_context_should_select_another_host)(cluster, context, FIRST_PRIORITY, host)) break;
    one = (one + 1) % count;
  }
  *index = (uint32_t)one;
  return true;
}

static bool is_listed(struct text list, struct text address) {
  for (const char *at = list.ptr, *end = list.ptr + list.length; at < end;) {
    const char *comma = memchr(at, ',', (size_t)(end - at));
    size_t length = (size_t)((comma ? comma : end) - at);
    if (same((struct text){at, length}, address)) return true;
    at += length + 1;
  }
  return false;
}

/* The same among those of a list alone; false: none of them is healthy. `untried`: of those that were not tried, which may
   be none. */
static bool least_among(void *cluster, void *context, struct text list, bool untried, uint32_t *index) {
  size_t count = CALLBACK(lb_get_healthy_hosts_count)(cluster, FIRST_PRIORITY), found = 0, two[2] = {0, 0};
  for (size_t i = 0; i < count; i++) {
    struct text address;
    if (!CALLBACK(lb_get_healthy_host_address)(cluster, FIRST_PRIORITY, i, &address) || !is_listed(list, address)) continue;
    if (untried && CALLBACK(lb_context_should_select_another_host)(cluster, context, FIRST_PRIORITY, among_all(cluster, i)))
      continue;
    /* Each pair is as likely (reservoir sampling). */
    size_t place = found < 2 ? found : draw(found + 1);
    if (place < 2) two[place] = i;
    found++;
  }
  if (!found) return false;
  /* Of equal ones either: the places above are not as likely for each. */
  size_t place = found > 1 ? draw(2) : 0, one = two[place], other = found > 1 ? two[1 - place] : one;
  *index = (uint32_t)(active(cluster, other) < active(cluster, one) ? other : one);
  return true;
}

EXPORTED bool HOOK(lb_choose_host)(void *cluster, const void *module, void *context, uint32_t *priority,
                                   uint32_t *index) {
  (void)module;
  *priority = FIRST_PRIORITY;
  struct request *request = request_of(context);
  if (request && request->among) {
    bool again = CALLBACK(lb_context_get_host_selection_retry_count)(context) > 0;
    return (again && least_among(cluster, context, request->fallbacks, true, index)) ||
           least_among(cluster, context, request->fallbacks, false, index);
  }
  while (request && request->fallbacks.length)
    if (is_healthy(cluster, next_fallback(request), index)) return true;
  return least_request(cluster, context, index);
}

/* Nothing is known of a cluster, but a null would say that something failed. */
static const char nothing;

/* Where a callback is missing Envoy does not start: nobody else would choose for the clusters. */
EXPORTED const void *HOOK(lb_config_new)(void *envoy, struct text name, struct text config) {
  (void)envoy, (void)name, (void)config;
  const char *lacking = missing_callback();
  if (!lacking) return &nothing;
  log_warning(NULL, "Envoy lacks a callback, and cannot choose a worker", lacking);
  return NULL;
}

EXPORTED const void *HOOK(lb_new)(const void *config, void *cluster) {
  (void)config, (void)cluster;
  return &nothing;
}
