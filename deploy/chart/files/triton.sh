#!/usr/bin/env bash
# Before Triton stops: wait until the agent beside it has drained the worker, and ended.
#   triton.sh drained SOCKET PORT LIMIT_S
# SOCKET is the agent's, which is there while it runs. A Triton that does not answer at PORT (HTTP) has nothing to wait for.
set -u
socket=$2 port=$3 limit_s=$4

alive() {
  local status
  exec 3<>"/dev/tcp/127.0.0.1/$port" || return 1
  printf 'GET /v2/health/live HTTP/1.1\r\nHost: triton\r\nConnection: close\r\n\r\n' >&3
  IFS= read -r -t 2 status <&3
  exec 3<&- 3>&-
  [[ ${status:-} == HTTP/1.1\ 200* ]]
} 2>/dev/null

while ((SECONDS < limit_s)) && [[ -S $socket ]] && alive; do sleep 0.5; done
