/* A server of one thread over epoll, until it is killed. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

static int listen_on(int port) {
  int file = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), yes = 1;
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  setsockopt(file, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  if (bind(file, (struct sockaddr *)&address, sizeof address) || listen(file, 512)) {
    perror("listen");
    exit(1);
  }
  return file;
}

/* `ports`: numbers, as texts. A connection is `bytes` of zeros that begin with its file; `serve` is called when something
   came, and says whether it is still open. */
static _Noreturn void serve_all(int count, char **ports, size_t bytes, int (*serve)(void *connection)) {
  prctl(PR_SET_PDEATHSIG, SIGKILL); /* never longer than who started it */
  int epoll = epoll_create1(0);
  struct epoll_event events[64];
  for (int i = 0; i < count; i++) {
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = (uint64_t)listen_on(atoi(ports[i]))};
    epoll_ctl(epoll, EPOLL_CTL_ADD, (int)event.data.u64, &event);
  }
  for (;;) {
    int ready = epoll_wait(epoll, events, 64, -1);
    for (int i = 0; i < ready; i++) {
      if (events[i].data.u64 < 65536) { /* a number of a file, and no address */
        int yes = 1, file = accept((int)events[i].data.u64, NULL, NULL);
        int *connection = file < 0 ? NULL : calloc(1, bytes);
        if (!connection) continue;
        *connection = file;
        fcntl(file, F_SETFL, O_NONBLOCK);
        setsockopt(file, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = connection};
        epoll_ctl(epoll, EPOLL_CTL_ADD, file, &event);
      } else if (!serve(events[i].data.ptr)) {
        close(*(int *)events[i].data.ptr);
        free(events[i].data.ptr);
      }
    }
  }
}
