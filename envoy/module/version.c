#define _GNU_SOURCE
#include "filter.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* As inference_bytes.py of extproc: into the path of REST, and before a message of gRPC, where one of the client's own
   would stay in force. */

enum { VERSION_TAG = 2 << 3 | 2, MOST_PATH = 16384, MODEL_SLASHES = 3 };

/* Behind the model, which is the third of the path's names. */
static void into_path(void *filter, struct request *request, struct text version) {
  static const struct text VERSIONS = TEXT("/versions/");
  char path[MOST_PATH], *end = path;
  struct text found;
  size_t at = 0, slashes = 0;
  if (!CALLBACK(http_get_header)(filter, REQUEST_HEADERS, TEXT(":path"), &found, 0, NULL)) return;
  for (; at < found.length && (found.ptr[at] != '/' || slashes++ < MODEL_SLASHES); at++);
  if (at == found.length || found.length + VERSIONS.length + version.length > sizeof path) return;
  end = put_text(put_text(put_text(end, (struct text){found.ptr, at}), VERSIONS), version);
  end = put_text(end, (struct text){found.ptr + at, found.length - at});
  CALLBACK(http_set_header)(filter, REQUEST_HEADERS, TEXT(":path"), (struct text){path, (size_t)(end - path)});
  /* Envoy may keep it elsewhere now. */
  if (CALLBACK(http_get_header)(filter, REQUEST_HEADERS, TEXT(":path"), &found, 0, NULL)) request->path = found.ptr;
}

/* The `content-length` that a client sent, which few clients of gRPC do. */
static void lengthen(void *filter, size_t by) {
  struct text found;
  uint64_t bytes;
  char digits[24];
  if (!CALLBACK(http_get_header)(filter, REQUEST_HEADERS, TEXT("content-length"), &found, 0, NULL)) return;
  if (!found.length || found.length > 18 || digits_of(found, &bytes) < found.length) return;
  int length = snprintf(digits, sizeof digits, "%" PRIu64, bytes + by);
  CALLBACK(http_set_header)(filter, REQUEST_HEADERS, TEXT("content-length"), (struct text){digits, (size_t)length});
}

/* All of one of Envoy's buffers; false: it cannot be had. */
static bool copy_of(void *filter, int kind, char *at, size_t bytes) {
  size_t count = CALLBACK(http_get_body_chunks_size)(filter, kind);
  struct text *chunks = calloc(count ? count : 1, sizeof *chunks);
  bool whole = chunks && (!count || CALLBACK(http_get_body_chunks)(filter, kind, chunks));
  for (size_t i = 0; whole && i < count; i++) {
    if (chunks[i].length > bytes) whole = false;
    else at = put_text(at, chunks[i]);
    bytes -= whole ? chunks[i].length : 0;
  }
  free(chunks);
  return whole && !bytes;
}

/* Moves the frame's header to the front, and has it count `field` bytes more; false: it is none that can be. */
static bool put_before(char *body, size_t field) {
  const char *frame = body + field;
  uint64_t message = field;
  uint32_t length_read = 0;
  for (int i = 1; i < BALANCER_FRAME_BYTES; i++) length_read = length_read << 8 | (uint8_t)frame[i];
  message += length_read;
  if (frame[0] || message > UINT32_MAX) return false;
  body[0] = 0;
  for (int i = 1; i < BALANCER_FRAME_BYTES; i++) body[i] = (char)(message >> 8 * (BALANCER_FRAME_BYTES - 1 - i));
  return true;
}

/* What has come of the body is copied; what comes later follows by itself. What came before may have been kept: then it is
   lengthened, if the whole of the frame's header is in it. */
static void before_message(void *filter, struct text version) {
  size_t kept = CALLBACK(http_get_body_size)(filter, BUFFERED_REQUEST_BODY), field = 2 + version.length;
  size_t came = kept < BALANCER_FRAME_BYTES ? CALLBACK(http_get_body_size)(filter, RECEIVED_REQUEST_BODY) : 0;
  if (kept + came < BALANCER_FRAME_BYTES) return;
  char *body = malloc(kept + came + field);
  if (body && copy_of(filter, BUFFERED_REQUEST_BODY, body + field, kept) &&
      (!came || copy_of(filter, RECEIVED_REQUEST_BODY, body + field + kept, came)) && put_before(body, field)) {
    body[BALANCER_FRAME_BYTES] = VERSION_TAG;
    body[BALANCER_FRAME_BYTES + 1] = (char)version.length;
    put_text(body + BALANCER_FRAME_BYTES + 2, version);
    if (kept) CALLBACK(http_drain_body)(filter, BUFFERED_REQUEST_BODY, kept);
    if (came) CALLBACK(http_drain_body)(filter, RECEIVED_REQUEST_BODY, came);
    int kind = came ? RECEIVED_REQUEST_BODY : BUFFERED_REQUEST_BODY;
    CALLBACK(http_append_body)(filter, kind, (struct text){body, kept + came + field});
    lengthen(filter, field);
  }
  free(body);
}

void version_write(void *filter, struct request *request) {
  struct text version = {request->decision.version, strlen(request->decision.version)};
  if (request->features.grpc)
    before_message(filter, version);
  else
    into_path(filter, request, version);
}
