/* A gRPC server that costs as little as can be: any request, once it is whole, gets the same message and status 0.

   upstream PORT...: listens on all of them, in one thread, until it is killed. HTTP/2 as far as a client needs it that sends
   what it announced: https://www.rfc-editor.org/rfc/rfc9113 */
#include "server.h"

#include <poll.h>
#include <string.h>

enum { DATA, HEADERS, SETTINGS = 4, PING = 6, WINDOW_UPDATE = 8, END_STREAM = 1, ACK = 1, END_HEADERS = 4 };
enum { PREFACE_BYTES = 24, HEAD_BYTES = 9, IN_BYTES = 1 << 18, OUT_BYTES = 1 << 16, MESSAGE_BYTES = 64 };

struct connection {
  int file, greeted;
  size_t in_length, out_length;
  uint32_t unread; /* bytes that the client may not send again until it is told */
  uint8_t in[IN_BYTES], out[OUT_BYTES];
};

static void flush(struct connection *c) {
  size_t sent = 0;
  while (sent < c->out_length) {
    ssize_t count = send(c->file, c->out + sent, c->out_length - sent, MSG_NOSIGNAL);
    if (count > 0) {
      sent += (size_t)count;
    } else if (errno == EAGAIN) {
      struct pollfd writable = {c->file, POLLOUT, 0};
      poll(&writable, 1, 1000);
    } else {
      break;
    }
  }
  c->out_length = 0;
}

static void put(struct connection *c, uint8_t type, uint8_t flags, uint32_t stream, const void *body, size_t length) {
  if (c->out_length + HEAD_BYTES + length > sizeof c->out) flush(c);
  uint8_t head[HEAD_BYTES] = {(uint8_t)(length >> 16), (uint8_t)(length >> 8), (uint8_t)length, type, flags,
                              (uint8_t)(stream >> 24), (uint8_t)(stream >> 16), (uint8_t)(stream >> 8), (uint8_t)stream};
  memcpy(c->out + c->out_length, head, sizeof head);
  if (length) memcpy(c->out + c->out_length + sizeof head, body, length);
  c->out_length += sizeof head + length;
}

static void put_window(struct connection *c, uint32_t bytes) {
  uint8_t body[4] = {(uint8_t)(bytes >> 24), (uint8_t)(bytes >> 16), (uint8_t)(bytes >> 8), (uint8_t)bytes};
  put(c, WINDOW_UPDATE, 0, 0, body, sizeof body);
}

static void greet(struct connection *c) {
  /* A window and a number of streams that nobody reaches, and no table of headers, so that none has to be kept. */
  static const uint8_t settings[] = {0, 1, 0, 0, 0, 0, 0, 3, 0x7f, 255, 255, 255, 0, 4, 0x3f, 255, 255, 255};
  put(c, SETTINGS, 0, 0, settings, sizeof settings);
  put_window(c, 0x3fff0000);
  c->greeted = 1;
}

static void answer(struct connection *c, uint32_t stream) {
  /* :status 200 and content-type application/grpc; then grpc-status 0. Literals of HPACK, none indexed. */
  static const uint8_t headers[] = "\x88\x0f\x10\x10" "application/grpc", trailers[] = "\x00\x0b" "grpc-status\x01" "0";
  static const uint8_t message[5 + MESSAGE_BYTES] = {0, 0, 0, 0, MESSAGE_BYTES, 0x32, MESSAGE_BYTES - 2};
  put(c, HEADERS, END_HEADERS, stream, headers, sizeof headers - 1);
  put(c, DATA, 0, stream, message, sizeof message);
  put(c, HEADERS, END_HEADERS | END_STREAM, stream, trailers, sizeof trailers - 1);
}

/* Takes the whole frames that are there. */
static void take(struct connection *c) {
  size_t at = 0;
  if (!c->greeted) {
    if (c->in_length < PREFACE_BYTES) return;
    at = PREFACE_BYTES;
    greet(c);
  }
  while (c->in_length - at >= HEAD_BYTES) {
    const uint8_t *head = c->in + at;
    size_t length = (size_t)head[0] << 16 | (size_t)head[1] << 8 | head[2];
    uint32_t stream = (uint32_t)(head[5] & 127) << 24 | (uint32_t)head[6] << 16 | (uint32_t)head[7] << 8 | head[8];
    if (c->in_length - at < HEAD_BYTES + length) break;
    if (head[3] == SETTINGS && !(head[4] & ACK)) put(c, SETTINGS, ACK, 0, NULL, 0);
    if (head[3] == PING && !(head[4] & ACK)) put(c, PING, ACK, 0, head + HEAD_BYTES, length);
    if (head[3] == DATA) c->unread += (uint32_t)length;
    if ((head[3] == DATA || head[3] == HEADERS) && head[4] & END_STREAM) answer(c, stream);
    at += HEAD_BYTES + length;
  }
  if (c->unread > 1 << 26) {
    put_window(c, c->unread);
    c->unread = 0;
  }
  memmove(c->in, c->in + at, c->in_length - at);
  c->in_length -= at;
}

/* Whether the connection is still open. */
static int serve(void *connection) {
  struct connection *c = connection;
  ssize_t count;
  while ((count = recv(c->file, c->in + c->in_length, sizeof c->in - c->in_length, 0)) > 0) {
    c->in_length += (size_t)count;
    take(c);
    if (c->in_length == sizeof c->in) return 0; /* a frame that is larger than was allowed */
  }
  flush(c);
  return count < 0 && errno == EAGAIN;
}

int main(int count, char **arguments) { serve_all(count - 1, arguments + 1, sizeof(struct connection), serve); }
