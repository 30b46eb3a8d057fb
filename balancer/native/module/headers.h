/* Paths and headers of a request. */
#ifndef BALANCER_HEADERS_H
#define BALANCER_HEADERS_H

#include "request.h"

struct balancer_span balancer_header(struct balancer_headers headers, struct balancer_span name);
bool balancer_span_begins(struct balancer_span span, const char *with);

/* Which call a path is; of REST, its model and version, and whether it is the inference whose JSON is read. */
enum balancer_kind balancer_grpc_kind(struct balancer_span path);
enum balancer_kind balancer_rest_kind(struct balancer_span path, struct balancer_text *model,
                                      struct balancer_text *version, bool *json);

/* Each is true where the value is within bounds, or there is none; else the refusal says why. */
bool balancer_text_within(const struct balancer_text *text, struct balancer_span field, struct balancer_refusal *refusal);
bool balancer_header_text(struct balancer_headers headers, struct balancer_span name, struct balancer_text *text,
                          struct balancer_refusal *refusal);
/* 0 where there is none. */
bool balancer_header_whole(struct balancer_headers headers, struct balancer_span name, uint32_t least, uint32_t most,
                           uint32_t *value, struct balancer_refusal *refusal);
bool balancer_digits_within(const struct balancer_digits *digits, const char *field, uint64_t most, uint64_t *value,
                            struct balancer_refusal *refusal);
/* The tightest of gRPC's timeout, Triton's, and the header's. */
bool balancer_deadline(struct balancer_headers headers, struct balancer_span name, const struct balancer_digits *timeout,
                       double *deadline_s, struct balancer_refusal *refusal);

/* False, with "FIELD: VALUE is refused; it RULE". */
bool balancer_refuse(struct balancer_refusal *refusal, struct balancer_span field, const struct balancer_text *value,
                     const char *rule);

#define BALANCER_SPAN(text) ((struct balancer_span){(text), sizeof(text) - 1})

#endif
