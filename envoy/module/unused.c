#include "abi.h"
#include "state.h"

/* Hooks that Envoy looks up and this module has no use for. They are called with arguments that a function without
   parameters ignores (System V and AAPCS64 calling conventions). */
#define UNUSED(name) EXPORTED int HOOK(name)(void) { return 0; }
UNUSED(http_filter_http_callout_done)
UNUSED(http_filter_scheduled)
UNUSED(http_filter_http_stream_headers)
UNUSED(http_filter_http_stream_data)
UNUSED(http_filter_http_stream_trailers)
UNUSED(http_filter_http_stream_complete)
UNUSED(http_filter_http_stream_reset)
UNUSED(http_filter_config_scheduled)
UNUSED(http_filter_config_http_callout_done)
UNUSED(http_filter_config_http_stream_headers)
UNUSED(http_filter_config_http_stream_data)
UNUSED(http_filter_config_http_stream_trailers)
UNUSED(http_filter_config_http_stream_complete)
UNUSED(http_filter_config_http_stream_reset)
UNUSED(http_filter_local_reply)
UNUSED(lb_config_destroy)
UNUSED(lb_destroy)
UNUSED(lb_on_host_membership_update)
