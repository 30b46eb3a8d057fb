/* An HTTP/1.1 server that costs as little as can be: any request, once it is whole, gets the same JSON and status 200; one
   that asks for a stream, as many events of OpenAI's API as `EVENTS` says.

   http PORT...: listens on all of them, in one thread, until it is killed. Bodies have a content-length; who sends
   chunks is told so (411). */
#include "server.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

enum { IN_BYTES = 1 << 18, EVENTS = 200, WRITES = 10, MOST_OUT = 1 << 14 };

static const char GOOD[] = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 13\r\n\r\n{\"text\":\"ok\"}";
static const char NO_LENGTH[] = "HTTP/1.1 411 Length Required\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";

#define EVENT "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"tide\"}}]}\n\n"
#define DONE "data: [DONE]\n\n"
/* With its length: h2load 1.52 hangs on chunks. */
#define STREAM "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: %zu\r\n\r\n"

struct connection {
  int file;
  size_t length;
  char in[IN_BYTES + 1];
};

/* The header's value in a head that ends with a zero; null: it has none. */
static const char *header(const char *head, const char *name) {
  size_t length = strlen(name);
  for (const char *line = strstr(head, "\r\n"); line; line = strstr(line + 2, "\r\n"))
    if (!strncasecmp(line + 2, name, length) && line[2 + length] == ':') return line + 3 + length;
  return NULL;
}

static int good(int file, const char *data, size_t length) {
  return send(file, data, length, MSG_NOSIGNAL) == (ssize_t)length;
}

/* As a model writes it: some events at a time. */
static int answer_stream(int file) {
  static char out[MOST_OUT];
  size_t length = (size_t)sprintf(out, STREAM, EVENTS * (sizeof EVENT - 1) + sizeof DONE - 1);
  if (!good(file, out, length)) return 0;
  for (int i = 0; i < WRITES; i++) {
    length = 0;
    for (int k = 0; k < EVENTS / WRITES; k++) length += (size_t)sprintf(out + length, EVENT);
    if (i == WRITES - 1) length += (size_t)sprintf(out + length, DONE);
    if (!good(file, out, length)) return 0;
  }
  return 1;
}

/* Answers the whole requests that are there; whether the connection is still good. The answers are small enough for the
   socket's buffer. */
static int take(struct connection *c) {
  size_t at = 0;
  char *end;
  c->in[c->length] = 0;
  while ((end = strstr(c->in + at, "\r\n\r\n"))) {
    *end = 0;
    const char *length = header(c->in + at, "content-length");
    int chunked = header(c->in + at, "transfer-encoding") != NULL;
    *end = '\r';
    size_t next = (size_t)(end + 4 - c->in) + (length ? strtoul(length, NULL, 10) : 0);
    if (chunked || next > IN_BYTES) {
      send(c->file, NO_LENGTH, sizeof NO_LENGTH - 1, MSG_NOSIGNAL);
      return 0;
    }
    if (next > c->length) break;
    int streams = memmem(end, (size_t)(c->in + next - end), "\"stream\": true", 14) != NULL;
    if (!(streams ? answer_stream(c->file) : good(c->file, GOOD, sizeof GOOD - 1))) return 0;
    at = next;
  }
  memmove(c->in, c->in + at, c->length - at);
  c->length -= at;
  return 1;
}

static int serve(void *connection) {
  struct connection *c = connection;
  ssize_t count;
  while ((count = recv(c->file, c->in + c->length, IN_BYTES - c->length, 0)) > 0) {
    c->length += (size_t)count;
    if (!take(c)) return 0;
  }
  return count < 0 && errno == EAGAIN;
}

int main(int count, char **arguments) { serve_all(count - 1, arguments + 1, sizeof(struct connection), serve); }
