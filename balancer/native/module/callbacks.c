#include "filter.h"

const char *missing_callback(void) {
  const struct {
    bool there;
    const char *name;
  } needed[] = {
    {CALLBACK(http_get_header), "http_get_header"},
    {CALLBACK(http_get_headers), "http_get_headers"},
    {CALLBACK(http_get_headers_size), "http_get_headers_size"},
    {CALLBACK(http_set_header), "http_set_header"},
    {CALLBACK(http_get_body_size), "http_get_body_size"},
    {CALLBACK(http_get_body_chunks_size), "http_get_body_chunks_size"},
    {CALLBACK(http_get_body_chunks), "http_get_body_chunks"},
    {CALLBACK(http_append_body), "http_append_body"},
    {CALLBACK(http_drain_body), "http_drain_body"},
    {CALLBACK(http_set_dynamic_metadata_string_batch), "http_set_dynamic_metadata_string_batch"},
    {CALLBACK(http_set_upstream_override_host), "http_set_upstream_override_host"},
    {CALLBACK(http_send_response), "http_send_response"},
    {CALLBACK(http_clear_route_cache), "http_clear_route_cache"},
    {CALLBACK(http_filter_get_attribute_string), "http_filter_get_attribute_string"},
    {CALLBACK(http_filter_get_attribute_int), "http_filter_get_attribute_int"},
    {CALLBACK(lb_get_hosts_count), "lb_get_hosts_count"},
    {CALLBACK(lb_get_healthy_hosts_count), "lb_get_healthy_hosts_count"},
    {CALLBACK(lb_get_host_address), "lb_get_host_address"},
    {CALLBACK(lb_get_healthy_host_address), "lb_get_healthy_host_address"},
    {CALLBACK(lb_get_host_stat), "lb_get_host_stat"},
    {CALLBACK(lb_context_get_downstream_header), "lb_context_get_downstream_header"},
    {CALLBACK(lb_context_get_host_selection_retry_count), "lb_context_get_host_selection_retry_count"},
    {CALLBACK(lb_context_should_select_another_host), "lb_context_should_select_another_host"},
  };
  for (size_t i = 0; i < sizeof needed / sizeof *needed; i++)
    if (!needed[i].there) return needed[i].name;
  return NULL;
}
