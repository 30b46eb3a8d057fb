/* An HTTP/1.1 server that costs as little as can be: any request, once it is whole, gets the same JSON and status 200.

   http PORT...: listens on all of them, in one thread, until it is killed. Bodies have a content-length; who sends
   chunks is told so (411). */
#include "server.h"

#include <string.h>
#include <strings.h>

enum { IN_BYTES = 1 << 18 };

static const char GOOD[] = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 13\r\n\r\n{\"text\":\"ok\"}";
static const char NO_LENGTH[] = "HTTP/1.1 411 Length Required\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";

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
    if (send(c->file, GOOD, sizeof GOOD - 1, MSG_NOSIGNAL) != (ssize_t)(sizeof GOOD - 1)) return 0;
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
