#!/usr/bin/env bash
# What a kubelet asks of Envoy and has it do, by Envoy's admin port, which listens within the pod only. For an image that has
# bash and no HTTP client.
#   envoy.sh alive PORT                     it answers
#   envoy.sh ready PORT                     it serves, and knows a worker
#   envoy.sh drain PORT SETTLE_S LIMIT_S    clients are asked to go; ends when none has a request left, or at the limit
#   envoy.sh gone PORT LIMIT_S              ends when Envoy has ended, or at the limit
set -u
what=$1 port=$2
# `read` waits no longer than this for a line of Envoy's.
patience_s=2

ask() { # METHOD PATH; prints the answer, head and body
  exec 3<>"/dev/tcp/127.0.0.1/$port" || return 1
  printf '%s %s HTTP/1.1\r\nHost: admin\r\nContent-Length: 0\r\nConnection: close\r\n\r\n' "$1" "$2" >&3
  while IFS= read -r -t "$patience_s" line || [[ -n $line ]]; do printf '%s\n' "$line"; done <&3
  exec 3<&- 3>&-
} 2>/dev/null

runs() { (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; }

statistic() { # NAME; its value, nothing where Envoy does not answer
  ask GET "/stats?filter=^$1\$" | sed -n 's/^[a-z0-9_.]*: \([0-9]*\).*/\1/p'
}

case $what in
  alive) [[ $(ask GET /server_info) == HTTP/1.1\ 200* ]] ;;
  # Without a worker it could answer nobody, and other pods may know some.
  ready) [[ $(ask GET /ready) == HTTP/1.1\ 200* ]] && (($(statistic cluster.triton_grpc.membership_total) + 0 > 0)) ;;
  drain)
    settle_s=$3 limit_s=$4
    # Every answer from here on tells its client to use another connection; the listener stays open meanwhile.
    ask POST '/drain_listeners?graceful&skip_exit' >/dev/null
    while ((SECONDS < limit_s)); do
      sleep 0.5
      left=$(statistic http.inference.downstream_rq_active)
      # An Envoy that is only slow to answer is asked again.
      [[ -n $left ]] || runs || exit 0
      [[ $left == 0 ]] && ((SECONDS >= settle_s)) && exit 0
    done
    # The limit: what is left ends with Envoy.
    exit 0
    ;;
  gone)
    while ((SECONDS < $3)) && runs; do sleep 0.5; done
    exit 0
    ;;
esac
