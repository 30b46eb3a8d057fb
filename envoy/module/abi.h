/* What is used of Envoy's ABI for dynamic modules, "v0.2.0" as in Envoy 1.40, declared by hand from its documentation.

   Callbacks are weak: where Envoy lacks one its address is null, which `on_program_init` looks for and names; and the
   balancer, in whose process there is no Envoy, can load the same library. */
#ifndef MODULE_ABI_H
#define MODULE_ABI_H

#include "text.h"

#define ABI_VERSION "v0.2.0"

struct header {
  struct text name, value;
};

#define CALLBACK(name) envoy_dynamic_module_callback_##name
#define HOOK(name) envoy_dynamic_module_on_##name
#define WEAK __attribute__((weak))

enum header_kind { REQUEST_HEADERS, REQUEST_TRAILERS, RESPONSE_HEADERS, RESPONSE_TRAILERS };
enum body_kind { RECEIVED_REQUEST_BODY, BUFFERED_REQUEST_BODY, RECEIVED_RESPONSE_BODY };
enum headers_status { HEADERS_CONTINUE, HEADERS_STOP };
enum body_status { BODY_CONTINUE, BODY_STOP_AND_BUFFER };
enum attribute { RESPONSE_CODE = 15, RESPONSE_CODE_DETAILS = 16, UPSTREAM_ADDRESS = 41, ATTEMPT_COUNT = 53, ROUTE_NAME = 61 };
enum host_count { REQUESTS_ACTIVE = 7 };
enum log_level { LOG_INFO = 2, LOG_WARNING = 3 };

#define CALLBACKS(X) \
  X(bool, http_get_header, void *filter, int kind, struct text name, struct text *found, size_t index, size_t *count) \
  X(size_t, http_get_headers_size, void *filter, int kind) \
  X(bool, http_get_headers, void *filter, int kind, struct header *headers) \
  X(bool, http_set_header, void *filter, int kind, struct text name, struct text value) \
  X(size_t, http_get_body_size, void *filter, int kind) \
  X(size_t, http_get_body_chunks_size, void *filter, int kind) \
  X(bool, http_get_body_chunks, void *filter, int kind, struct text *chunks) \
  X(bool, http_append_body, void *filter, int kind, struct text bytes) \
  X(bool, http_drain_body, void *filter, int kind, size_t bytes) \
  /* Pairs of key and value. */ \
  X(void, http_set_dynamic_metadata_string_batch, void *filter, struct text space, const struct header *entries, \
    size_t count) \
  /* `strict`: no other one where that one is not healthy. */ \
  X(bool, http_set_upstream_override_host, void *filter, struct text address, bool strict) \
  X(void, http_clear_route_cache, void *filter) \
  X(void, http_send_response, void *filter, uint32_t status, struct header *headers, size_t count, struct text body, \
    struct text details) \
  X(bool, http_filter_get_attribute_string, void *filter, int attribute, struct text *found) \
  X(bool, http_filter_get_attribute_int, void *filter, int attribute, uint64_t *found) \
  /* Of a cluster: its hosts by index, all or the healthy ones, at a priority. */ \
  X(size_t, lb_get_hosts_count, void *cluster, uint32_t priority) \
  X(size_t, lb_get_healthy_hosts_count, void *cluster, uint32_t priority) \
  X(bool, lb_get_host_address, void *cluster, uint32_t priority, size_t index, struct text *found) \
  X(bool, lb_get_healthy_host_address, void *cluster, uint32_t priority, size_t index, struct text *found) \
  X(uint64_t, lb_get_host_stat, void *cluster, uint32_t priority, size_t index, int count) \
  X(bool, lb_context_get_downstream_header, void *context, struct text name, struct text *found, size_t index, \
    size_t *count) \
  X(uint32_t, lb_context_get_host_selection_retry_count, void *context) \
  /* Whether it was tried. */ \
  X(bool, lb_context_should_select_another_host, void *cluster, void *context, uint32_t priority, size_t index)
#define DECLARE(returns, name, ...) WEAK returns CALLBACK(name)(__VA_ARGS__);
CALLBACKS(DECLARE)
/* The only one that can be done without. */
WEAK void CALLBACK(log)(int level, struct text message);

#endif
