/* An HTTP/1.1 server that costs as little as can be: any request, once it is whole, gets the same JSON and status 200.

   http PORT...: listens on all of them, in one thread, until it is killed. Bodies have a content-length; who sends
   chunks is told so (411). */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

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

static int serve(struct connection *c) {
  ssize_t count;
  while ((count = recv(c->file, c->in + c->length, IN_BYTES - c->length, 0)) > 0) {
    c->length += (size_t)count;
    if (!take(c)) return 0;
  }
  return count < 0 && errno == EAGAIN;
}

static int listen_on(int port) {
  int file = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), yes = 1;
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  setsockopt(file, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  if (bind(file, (struct sockaddr *)&address, sizeof address) || listen(file, 512)) {
    perror("http");
    exit(1);
  }
  return file;
}

int main(int count, char **arguments) {
  prctl(PR_SET_PDEATHSIG, SIGKILL); /* never longer than who started it */
  int epoll = epoll_create1(0);
  struct epoll_event events[64];
  for (int i = 1; i < count; i++) {
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = (uint64_t)listen_on(atoi(arguments[i]))};
    epoll_ctl(epoll, EPOLL_CTL_ADD, (int)event.data.u64, &event);
  }
  for (;;) {
    int ready = epoll_wait(epoll, events, 64, -1);
    for (int i = 0; i < ready; i++) {
      if (events[i].data.u64 < 65536) { /* a number of a file, and no address */
        int yes = 1, file = accept((int)events[i].data.u64, NULL, NULL);
        struct connection *c = file < 0 ? NULL : calloc(1, sizeof *c);
        if (!c) continue;
        c->file = file;
        fcntl(file, F_SETFL, O_NONBLOCK);
        setsockopt(file, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = c};
        epoll_ctl(epoll, EPOLL_CTL_ADD, file, &event);
      } else if (!serve(events[i].data.ptr)) {
        struct connection *c = events[i].data.ptr;
        close(c->file);
        free(c);
      }
    }
  }
}
