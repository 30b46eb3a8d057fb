#include "abi.h"
#include "state.h"

/* Hooks that Envoy looks up and this filter has no use for. They are called with arguments that a function without
   parameters ignores (System V and AAPCS64 calling conventions). */
#define UNUSED(name) EXPORTED int HOOK(http_filter_##name)(void) { return 0; }
UNUSED(http_callout_done)
UNUSED(scheduled)
UNUSED(downstream_above_write_buffer_high_watermark)
UNUSED(downstream_below_write_buffer_low_watermark)
UNUSED(http_stream_headers)
UNUSED(http_stream_data)
UNUSED(http_stream_trailers)
UNUSED(http_stream_complete)
UNUSED(http_stream_reset)
UNUSED(config_scheduled)
UNUSED(config_http_callout_done)
UNUSED(config_http_stream_headers)
UNUSED(config_http_stream_data)
UNUSED(config_http_stream_trailers)
UNUSED(config_http_stream_complete)
UNUSED(config_http_stream_reset)
UNUSED(local_reply)
